package stage

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Publisher returns the broker's publisher, which publishes a share of the events twice, like a relay that dies at a bad moment.
func (p *Part) Publisher() (message.Publisher, error) {
	pub, err := p.Broker.Publisher()
	if err != nil {
		return nil, err
	}
	return Twice{BatchPublisher: pub.(transport.BatchPublisher), Share: p.Duplicates}, nil
}

// Twice publishes a share of the messages twice, always the same ones.
type Twice struct {
	transport.BatchPublisher
	Share float64
}

// PublishBatch implements transport.BatchPublisher.
func (d Twice) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := d.BatchPublisher.PublishBatch(ctx, topic, msgs)
	var again []*message.Message
	for i, m := range msgs {
		if results[i] == nil && Chosen(m.UUID, d.Share) {
			again = append(again, m)
		}
	}
	if len(again) > 0 {
		d.BatchPublisher.PublishBatch(ctx, topic, again)
	}
	return results
}

// Publish implements message.Publisher.
func (d Twice) Publish(topic string, msgs ...*message.Message) error { return OneByOne(d, topic, msgs) }

// OneByOne implements Publish with PublishBatch.
func OneByOne(p transport.BatchPublisher, topic string, msgs []*message.Message) error {
	for _, m := range msgs {
		if err := p.PublishBatch(m.Context(), topic, []*message.Message{m})[0]; err != nil {
			return err
		}
	}
	return nil
}

// Chosen reports whether the name is in the share, from 0 to 1. The result is always the same for a name.
func Chosen(name string, share float64) bool {
	h := sha256.Sum256([]byte(name))
	return float64(binary.BigEndian.Uint64(h[:])>>11)/(1<<53) < share
}
