package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Events that are published through a second pool of the same database would stay although the transaction around them is
// rolled back. That is refused, unless the caller says that they have a transaction of their own.
func TestDetachedRunPublishesInItsOwnTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"the outer one is rolled back": errOops, "the outer one commits": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker, second := newFixture(t), newRecorder(), devtest.Pool(t)
			f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
			publish := func(ctx context.Context, pool *pgxpool.Pool, payload string) error {
				return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
					return f.publisher.Publish(topic, newMessage(ctx, "k", payload))
				})
			}
			require.ErrorIs(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
				require.NoError(t, publish(ctx, f.pool, "outer"))
				require.ErrorContains(t, publish(ctx, second, "refused"), "pgtx.Detached(ctx)")
				require.NoError(t, publish(pgtx.Detached(ctx), second, "detached"))
				eventually(t, "it is published before the outer transaction ends", func() bool {
					return assert.ObjectsAreEqual([]string{"detached"}, broker.of("k"))
				})
				require.NoError(t, publish(ctx, f.pool, "outer again"))
				return end
			}), end)
			want := []string{"detached"}
			if end == nil { // the events of the outer transaction are its own
				want = append(want, "outer", "outer again")
			}
			f.publish("k", "last")
			want = append(want, "last")
			eventually(t, "the last one is published", func() bool { return len(broker.of("k")) >= len(want) && f.rows() == 0 })
			assert.Equal(t, want, broker.of("k"))
		})
	}
}
