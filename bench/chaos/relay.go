package chaos

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// relay forwards what was committed to the broker, and keeps it for replays.
func (p *part) relay(ctx context.Context) error {
	publisher, err := p.broker.Publisher()
	if err != nil {
		return err
	}
	broker := publisher.(transport.BatchPublisher)
	if p.Without == "confirmation" {
		broker = unconfirmed{broker}
	}
	cfg := outbox.RelayConfig{Schema: schema, LeaseTTL: leaseTTL, Archive: 24 * time.Hour, PublishTimeout: 5 * time.Second, Logger: p.log}
	if p.Without == "lease" {
		cfg.LeaseTTL = time.Hour
	}
	relay, err := outbox.NewRelay(p.pool, doubling{broker, p}, cfg)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return relay.Run(gctx) })
	g.Go(func() error {
		select {
		case <-relay.Running():
			p.works()
		case <-gctx.Done():
		}
		return nil
	})
	return g.Wait()
}

// doubling publishes every event twice while the process is told to, at least one batch, as a relay does that dies at a
// bad moment.
type doubling struct {
	transport.BatchPublisher
	p *part
}

func (d doubling) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := d.BatchPublisher.PublishBatch(ctx, topic, msgs)
	if d.p.owed.Swap(false) || time.Now().UnixNano() < d.p.twice.Load() {
		var again []*message.Message
		for i, msg := range msgs {
			if results[i] == nil {
				again = append(again, msg)
			}
		}
		d.BatchPublisher.PublishBatch(ctx, topic, again)
	}
	return results
}

// unconfirmed says that the broker has what it was only sent.
type unconfirmed struct{ transport.BatchPublisher }

func (u unconfirmed) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	ctx = context.WithoutCancel(ctx)
	sent := make([]*message.Message, len(msgs)) // the relay uses its own again
	for i, msg := range msgs {
		sent[i] = message.NewMessageWithContext(ctx, msg.UUID, bytes.Clone(msg.Payload))
		sent[i].Metadata = maps.Clone(msg.Metadata)
	}
	go func() { // nobody waits for it: that is what is wrong with it
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		u.BatchPublisher.PublishBatch(ctx, topic, sent)
	}()
	return make([]error, len(msgs))
}
