package claim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

const claimTables = `(processed|consumer|claim_)`

// locks are those that the handler's transaction has on the claim's tables.
func (f *fixture) locks(ctx context.Context) (n int) {
	tx, _ := pgtx.From(ctx)
	require.NoError(f.t, tx.QueryRow(ctx, `select count(*) from pg_locks l join pg_class c on c.oid = l.relation
		where l.pid = pg_backend_pid() and c.relnamespace = $1::regnamespace and c.relname ~ $2`, f.schema, "^"+claimTables).Scan(&n))
	return n
}

// A backend has 16 relation locks that cost little, up to PostgreSQL 17. A claim takes 8 once PostgreSQL reuses its plan.
func TestRelationLocksOfAClaim(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]claim.Config{"one key": {Ordered: true}, "no order": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			middleware := f.middleware(cfg)
			least := 17
			for i := range 8 { // a generic plan comes after five
				for _, id := range []string{outbox.NewID(), fmt.Sprint(i)} {
					n := 0
					msg, _ := deliver(t, id)
					_, err := middleware(func(msg *message.Message) ([]*message.Message, error) {
						n = f.locks(msg.Context())
						return nil, nil
					})(msg)
					require.NoError(t, err)
					assert.Positive(t, n)
					assert.LessOrEqual(t, n, 17) // making a plan locks all indexes of the tables: one lock too many, a few times for each connection
					least = min(least, n)
				}
			}
			assert.LessOrEqual(t, least, 8)
		})
	}
}

// The look for the records of a group took locks on every day's table and index.
func TestRelationLocksOfAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.grouped(claim.Config{})
	n := map[string]int{}
	for i := range 8 {
		ids, limit := []string{outbox.NewID(), outbox.NewID()}, 19
		if i%2 == 1 {
			ids[1], limit = fmt.Sprint(i), 22 // its record is a hash, which lies elsewhere
		}
		results := g.handle(func(ctx context.Context, id string) error {
			n[id] = f.locks(ctx)
			return nil
		}, ids...)
		for j, r := range results {
			require.True(t, r.acked(), r.err)
			assert.Positive(t, n[ids[j]])
			assert.LessOrEqual(t, n[ids[j]], limit)
		}
	}
}

// Records of a group may lie in several days, and among the hashes; each is found in its own.
func TestRecordsOfAGroupInSeveralDays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	yesterday := uuid.Must(uuid.NewV7())
	for i, ms := 0, time.Now().Add(-24*time.Hour).UnixMilli(); i < 6; i++ {
		yesterday[i] = byte(ms >> (8 * (5 - i)))
	}
	ids := []string{outbox.NewID(), yesterday.String(), "no UUID", outbox.NewID()}
	for _, id := range ids[:3] {
		msg, _ := deliver(t, id)
		_, err := f.middleware(claim.Config{})(f.handler)(msg)
		require.NoError(t, err)
	}
	for _, r := range f.grouped(claim.Config{}).handle(f.effect, ids...) {
		require.True(t, r.acked(), r.err)
	}
	assert.Equal(t, map[string]int{ids[0]: 1, ids[1]: 1, ids[2]: 1, ids[3]: 1}, f.effects())
}
