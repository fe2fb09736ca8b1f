package framework_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// A CQRS processor on the service's router with OnHandle: Claim().OnEvent claimed each event inside the service's own claim:
// the events were recorded and acked, and no handler ran.
func TestClaimInsideClaimOnTheServicesRouter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	const events = 20
	// run starts a service whose events are handled by a CQRS processor.
	run := func(onHandle func(*framework.Service) cqrs.EventProcessorOnHandleFn, handle func(context.Context, *labourCompleted) error) (*framework.Service, func()) {
		cfg := w.config()
		cfg.Claim.MaxAttempts, cfg.Claim.Backoff = 2, func(int) time.Duration { return time.Millisecond }
		svc := w.service(cfg)
		processor, err := cqrs.NewEventProcessorWithConfig(svc.Router(), cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return w.topic("done"), nil },
			SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				sub, err := svc.Transport().Subscriber(transport.SubscriberConfig{Consumer: p.HandlerName})
				if err != nil {
					return nil, err
				}
				return svc.Claim().Subscriber(p.HandlerName, sub), nil
			},
			OnHandle: onHandle(svc), Marshaler: cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName},
		})
		require.NoError(t, err)
		require.NoError(t, processor.AddHandlers(cqrs.NewEventHandler(w.name("notify"), handle)))
		return svc, w.start(svc)
	}
	var ran atomic.Int64
	handle := func(context.Context, *labourCompleted) error { ran.Add(1); return nil }

	nested, stop := run(func(s *framework.Service) cqrs.EventProcessorOnHandleFn { return s.Claim().OnEvent }, handle)
	require.NoError(t, nested.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		for i := range events {
			if err := publish(ctx, w.topic("done"), fmt.Sprint(i), labourCompleted{LabourID: int64(i)}); err != nil {
				return err
			}
		}
		return nil
	}))
	w.eventually("all of them are dead letters", func() bool {
		return w.get(`select count(*) from {s}.claim_failed where state = 'dead' and error like '%remove one of the two%'`) == events
	})
	stop()
	assert.Zero(t, ran.Load())

	_, stop = run(func(*framework.Service) cqrs.EventProcessorOnHandleFn { return nil }, handle)
	_, err := deadletter.Replay(t.Context(), w.pool, w.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	w.eventually("without OnHandle each of them is handled", func() bool { return ran.Load() == events })
	stop()
}
