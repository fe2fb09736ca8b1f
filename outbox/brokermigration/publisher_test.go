package brokermigration

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// sent keeps what is published to a broker.
type sent struct {
	transport.BatchPublisher
	metadata []message.Metadata
}

func (s *sent) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	for _, msg := range msgs {
		s.metadata = append(s.metadata, msg.Metadata)
	}
	return make([]error, len(msgs))
}

// In phase publish, CloudEvents had the header names of the old broker, so other programs that read the new one did not see them.
func TestCloudEventsHaveTheNamesOfTheirBroker(t *testing.T) {
	t.Parallel()
	const kafka, pubsub = "ce_", "ce-"
	for _, c := range []struct {
		from, to string
		phase    Phase
		want     string
	}{{"pubsub", "kafka", Consume, pubsub}, {"pubsub", "kafka", Publish, kafka}, {"kafka", "pubsub", Consume, kafka}, {"kafka", "pubsub", Cut, pubsub}} {
		var got sent
		p := publisher{&Transport{
			from: &side{Transport: &known{name: c.from}, publisher: &got}, to: &side{Transport: &known{name: c.to}, publisher: &got}, process: &process{},
		}}
		p.transport.process.gate.seen(Record{Epoch: 1, From: c.from, To: c.to, Phase: c.phase}, nil, time.Now().Add(ttl), time.Now())
		var msgs []*message.Message
		for _, prefix := range []string{kafka, pubsub} {
			msg := message.NewMessage("1", nil)
			msg.Metadata = message.Metadata{prefix + "specversion": "1.0", prefix + "id": "1"}
			msgs = append(msgs, msg)
		}
		require.NoError(t, p.Publish("orders", msgs...))
		require.Len(t, got.metadata, len(msgs))
		for _, metadata := range got.metadata {
			assert.Equal(t, message.Metadata{c.want + "specversion": "1.0", c.want + "id": "1"}, metadata, "%s to %s, phase %s", c.from, c.to, c.phase)
		}
	}
}
