package framework_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// One setting makes the publisher put events into the log, and the relay land them. Without a relay that has made the slot, the publisher is
// refused.
func TestStoreLogOfAService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	devtest.DropSlots(t, w.pool, w.schema+"_log_")
	service := func(relay framework.Placement, handled chan<- string) *framework.Service {
		cfg := w.config()
		cfg.Outbox.Store, cfg.Outbox.Relay = outbox.Log, relay
		svc := w.service(cfg)
		require.NoError(t, handle(svc, w.name("c"), w.topic("one"), func(_ context.Context, e string) error {
			handled <- e
			return nil
		}))
		return svc
	}
	say := func(svc *framework.Service) error {
		return svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, w.topic("one"), "k", "hello") })
	}
	handled := make(chan string, 10)
	svc := service(framework.Apart, handled)
	stop := w.start(svc)
	require.ErrorIs(t, say(svc), outbox.ErrNoLog)
	stop()
	svc = service(framework.Inside, handled)
	w.start(svc)
	w.eventually("the relay has made its slot", func() bool {
		err := say(svc)
		assert.True(t, err == nil || errors.Is(err, outbox.ErrNoLog), err)
		return err == nil
	})
	assert.Equal(t, "hello", next(t, handled))
	assert.Equal(t, 1, w.get(`select count(*) from {s}.outbox_landing where landed > '0/0'`))
}
