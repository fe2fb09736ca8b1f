package framework_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

// What no handler can take is dead, with its reason: at once where the payload is not of the type, and after its attempts
// where the handler panics. The others go on.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	good := make(chan int, 10)
	require.NoError(t, framework.Handle(svc, w.name("number"), w.topic("number"), func(_ context.Context, n int) error {
		if n == 7 {
			panic("not a seven")
		}
		good <- n
		return nil
	}))
	require.NoError(t, framework.Handle(svc, w.name("proto"), w.topic("proto"), func(_ context.Context, n *wrapperspb.Int64Value) error {
		good <- int(n.Value)
		return nil
	}))
	w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		raw := func(topic string, payload []byte) error {
			return svc.Outbox().Publish(w.topic(topic), message.NewMessageWithContext(ctx, outbox.NewID(), payload))
		}
		return errors.Join(
			framework.Publish(ctx, w.topic("number"), "", 7), framework.Publish(ctx, w.topic("number"), "", "seven"), raw("number", nil),
			raw("proto", []byte("\xff\xff")), framework.Publish(ctx, w.topic("number"), "", 8), framework.Publish(ctx, w.topic("proto"), "", wrapperspb.Int64(9)),
		)
	}))
	assert.ElementsMatch(t, []int{8, 9}, []int{next(t, good), next(t, good)})
	var dead []deadletter.Event
	w.eventually("four dead letters", func() bool {
		var err error
		dead, err = deadletter.List(t.Context(), w.pool, w.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
		require.NoError(t, err)
		return len(dead) == 4
	})
	texts := map[string]string{}
	for _, d := range dead {
		shown, err := deadletter.Show(t.Context(), w.pool, w.schema, d.EventID, d.Consumer)
		require.NoError(t, err)
		require.Len(t, shown, 1)
		texts[string(shown[0].Payload)] = d.Reason + ": " + d.Error
	}
	assert.Contains(t, texts["7"], "attempts: the handler panicked: not a seven")
	assert.Contains(t, texts[`"seven"`], "permanent: decode the payload as int: ")
	assert.Contains(t, texts[""], "permanent: decode the payload as int: ")
	assert.Contains(t, texts["\xff\xff"], "permanent: decode the payload as *wrapperspb.Int64Value: ")
}

// Nothing is published outside of a transaction, or by one that is rolled back.
func TestPublishNeedsACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Outbox.Relay = framework.Apart
	svc := w.service(cfg)
	svc.HTTP().HandleFunc("POST /bare", func(_ http.ResponseWriter, r *http.Request) {
		assert.ErrorIs(t, framework.Publish(r.Context(), "numbers", "", 1), outbox.ErrNoTransaction)
	})
	w.start(svc)
	require.Equal(t, http.StatusOK, post(t, "http://"+svc.Address()+"/bare"))
	undone := errors.New("undone")
	require.ErrorIs(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(t, framework.Publish(ctx, "numbers", "", 1))
		return undone
	}), undone)
	assert.Panics(t, func() {
		_ = svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
			require.NoError(t, framework.Publish(ctx, "numbers", "", 1))
			panic("undone")
		})
	})
	assert.Zero(t, w.get(`select count(*) from {s}.outbox`))
}
