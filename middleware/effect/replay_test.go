package effect_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

// Dead letters live until somebody decides, outcomes of effects 30 days: the SMS of a dead letter that was replayed on day 40 was
// sent twice. In the control the effect does not belong to the event, because its call is not made with the handler's context: its outcome
// is forgotten.
func TestReplayPastLedger(t *testing.T) {
	t.Parallel()
	for name, detached := range map[string]bool{"the outcome is kept": false, "control: the outcome belongs to no event": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
			require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
			c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{Service: "labour", Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			require.NoError(t, err)
			router.AddMiddleware(c.Middleware, f.ledger.Middleware)
			events := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
			sent, attempts := 0, 0
			handled := make(chan struct{})
			router.AddConsumerHandler("notify", "labour.completed", c.Subscriber("notify", events), func(msg *message.Message) error {
				ctx := msg.Context()
				if detached {
					ctx = f.ctx()
				}
				if err := effect.Once(ctx, "sms:"+msg.UUID, func(context.Context, string) error { sent++; return nil }); err != nil {
					return err
				}
				if attempts++; attempts == 1 {
					return claim.Permanent(errOops)
				}
				close(handled)
				return nil
			})
			devtest.Run(t, router)
			id := outbox.NewID()
			require.NoError(t, events.Publish("labour.completed", message.NewMessage(id, nil)))
			assert.Equal(t, 1, sent)

			f.age("sms:" + id)
			r, err := effect.Retain(t.Context(), f.pool, f.schema, 30*24*time.Hour)
			require.NoError(t, err)
			assert.Equal(t, []string{"effect_20200101"}, r.Days)
			replayed, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{id}}, deadletter.By{Actor: "ada"})
			require.NoError(t, err)
			assert.Equal(t, 1, replayed.Done)
			select {
			case <-handled:
			case <-time.After(20 * time.Second):
				require.Fail(t, "the event was not handled again")
			}
			if detached {
				assert.Zero(t, r.Kept)
				assert.Equal(t, 2, sent)
			} else {
				assert.EqualValues(t, 1, r.Kept)
				assert.Equal(t, 1, sent, "the replay finds the outcome")
			}
		})
	}
}
