package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

// Rules for topics and errors decide how often an event is tried, and when; in an outage they decide nothing.
func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	says := func(text string) func(error) bool {
		return func(err error) bool { return strings.Contains(err.Error(), text) }
	}
	f.run(f.newRelay(telling{batchRecorder{broker}}, outbox.RelayConfig{MaxAttempts: 3, PollInterval: 20 * time.Millisecond, Retry: retry.Policy{
		{ErrorText: "hopeless", Dead: true},
		{Error: says("slow"), Backoff: time.Hour},
		{Topic: topic, Error: says("twice"), MaxAttempts: 2},
		{Topic: "another", MaxAttempts: 1},
		{Error: says("outage"), Dead: true},
	}}))
	f.publish("hopeless", "hopeless")
	eventually(t, "it is dead at once, although the broker has taken nothing of the topic", func() bool {
		return assert.ObjectsAreEqual([]string{"hopeless dead 1"}, f.failed("hopeless"))
	})
	defer f.flow()()
	for _, payload := range []string{"slow", "twice", "odd", "outage"} {
		f.publish(payload, payload)
	}
	for payload, want := range map[string]string{"twice": "twice dead 2", "odd": "odd dead 3", "slow": "slow retrying 1"} {
		eventually(t, payload, func() bool { return assert.ObjectsAreEqual([]string{want}, f.failed(payload)) })
	}
	var wait float64
	require.NoError(t, f.pool.QueryRow(t.Context(), `select extract(epoch from retry_at - now()) from `+f.schema+`.outbox_failed where key = 'slow'`).Scan(&wait))
	assert.InDelta(t, 3200, wait, 500, "an hour, less a quarter at most")
	assert.Empty(t, f.failed("outage"), "it waits")
	assert.Empty(t, broker.of("outage"))

	_, err := outbox.NewRelay(f.pool, broker, outbox.RelayConfig{Retry: retry.Policy{{Topic: "["}}})
	require.ErrorContains(t, err, `RelayConfig.Retry[0].Topic is "["`)
}

// telling is a broker that refuses with an error that has the payload; of other keys it takes everything.
type telling struct{ batchRecorder }

func (r telling) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	for i, m := range msgs {
		switch key := transport.Key(m); {
		case key == "outage":
			errs[i] = errors.Join(transport.ErrUnavailable, errors.New(key))
		case key == string(m.Payload):
			errs[i] = errors.New(key)
		default:
			errs[i] = r.batchRecorder.PublishBatch(ctx, topic, msgs[i:i+1])[0]
		}
	}
	return errs
}
