package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/history"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// holder is a relay that believes what it is answered, for as long as a lease lasts by its own clock.
type holder struct {
	*store.Relay
	h      *history.History
	client int
	ttl    time.Duration
	held   map[int16]int64 // the terms of shards
	terms  int
}

// renew asks for leases, and reports whether it got one.
func (r *holder) renew(ctx context.Context) bool {
	asked := time.Now()
	var hold []int16
	for shard := range r.held {
		hold = append(hold, shard)
	}
	answer := r.Renew(ctx, step.Renew{Hold: hold})
	return answer.Err == nil && r.believe(asked, answer)
}

func (r *holder) believe(asked time.Time, answer step.Renewed) bool {
	clear(r.held)
	now, until := time.Now(), answer.Began.Add(r.ttl)
	if !now.Before(until) {
		return false // too late to be of use
	}
	r.terms++
	for _, l := range answer.Held {
		r.held[l.Shard] = l.Term
		op := history.Operation{Client: r.client, Key: fmt.Sprint("shard ", l.Shard), Value: fmt.Sprint(r.client, ".", r.terms)}
		op.Name, op.Call, op.Return = "take", r.h.At(asked), r.h.At(now)
		r.h.Add(op)
		op.Name, op.Call, op.Return = "expire", r.h.At(until), r.h.At(until)
		r.h.Add(op)
	}
	return len(answer.Held) > 0
}

// giveBack gives so many leases back. Whether the server learns of it or not, the relay no longer has them.
func (r *holder) giveBack(most int, back func(step.Release) error) error {
	var calls []*history.Call
	var given step.Release
	for shard, term := range r.held {
		if len(given.Shards) < most {
			given.Shards, given.Terms = append(given.Shards, shard), append(given.Terms, term)
			calls = append(calls, r.h.Call(r.client, fmt.Sprint("shard ", shard)))
		}
	}
	for _, shard := range given.Shards {
		delete(r.held, shard)
	}
	err := back(given)
	for _, c := range calls {
		c.Return("release", "")
	}
	return err
}

// end gives all back. It may fail: then they expire.
func (r *holder) end(t *testing.T) {
	_ = r.giveBack(16, func(step.Release) error { return r.Leave(t.Context()) })
}

// Three relays take and release leases, lose connections and patience, and are stopped for longer than a lease. There is an order
// in which they took turns: no shard had two that believed to hold it.
func TestLeasesHaveAHistory(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	const relays, rounds, ttl = 3, 30, 500 * time.Millisecond
	h := history.New()
	late := time.Now().Add(time.Minute)
	var group sync.WaitGroup
	for i := range relays {
		own := devtest.PoolOn(t, pool.Config().ConnString(), history.Named(schema))
		r := &holder{store.NewRelay(own, schema, uuid.New(), fmt.Sprint("relay ", i), ttl, 0), h, i + 1, ttl, map[int16]int64{}, 0}
		faults := history.Attack(t, pool, schema, r.client)
		group.Go(func() {
			got := 0
			for round := 0; (round < rounds || got == 0) && time.Now().Before(late); round++ {
				ctx, cancel := faults.Before(t.Context())
				if r.renew(ctx) {
					got++
				}
				if faults.One(3) {
					// After an error the server may execute it at any time.
					_ = r.giveBack(1+len(r.held)/2, func(a step.Release) error { return r.Release(ctx, a) })
				}
				cancel()
				pause := ttl / 8
				if faults.One(6) {
					pause = ttl * 5 / 4 // the process is stopped
				}
				time.Sleep(time.Duration(rand.Int64N(int64(pause))))
			}
			r.end(t)
		})
	}
	group.Wait()
	t.Logf("%d operations, %d leases", len(h.Operations()), h.Count("take"))
	assert.Positive(t, h.Count("take"))
	history.Check(t, h, history.Lease)
}

// The same look at a relay that takes leases without a look at who has them.
func TestHistoryShowsTwoRelays(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	const ttl = time.Hour
	h := history.New()
	first := &holder{store.NewRelay(pool, schema, uuid.New(), "first", ttl, 0), h, 1, ttl, map[int16]int64{}, 0}
	require.True(t, first.renew(t.Context()))

	thief := &holder{nil, h, 2, ttl, map[int16]int64{}, 0}
	answer := step.Renewed{Began: time.Now()}
	_, err := pool.Exec(t.Context(), `update `+schema+`.outbox_shard set relay_id = $1, expires_at = now() + interval '1 hour' where shard < 3`, uuid.New())
	require.NoError(t, err)
	for shard := range int16(3) {
		answer.Held = append(answer.Held, step.Lease{Shard: shard})
	}
	require.True(t, thief.believe(answer.Began, answer))
	require.NoError(t, first.Leave(t.Context()))
	wrong, _ := history.Unordered(h.Operations(), history.Lease)
	slices.Sort(wrong)
	assert.Equal(t, []string{"shard 0", "shard 1", "shard 2"}, wrong)
}
