package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// A relay that was stopped beyond its leases remembers what its shards held. Another one has had them since, and gave them
// back: to the first one they are lost, and it gets them as new ones at its next renewal.
func TestLeasesThatOthersHadAreLost(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	const ttl = 20 * time.Second // a busy machine may take a quarter of it for a renewal
	first := store.NewRelay(pool, schema, uuid.New(), "first", ttl, 0)
	other := store.NewRelay(pool, schema, uuid.New(), "other", ttl, 0)
	renew := func(r *store.Relay, hold []int16) []int16 { return renewed(t, r, hold).Shards }
	defer first.Leave(t.Context())
	all := renewed(t, first, nil)
	require.Len(t, all.Shards, 16)
	held := all.Shards[:8]
	require.NoError(t, first.Release(t.Context(), step.Release{Shards: all.Shards[8:], Terms: all.Terms[8:]}))
	for _, table := range []string{"outbox_shard", "outbox_relay"} { // the first relay did not renew in time
		_, err := pool.Exec(t.Context(), `update `+schema+`.`+table+` set expires_at = now()`)
		require.NoError(t, err)
	}
	require.Len(t, renew(other, nil), 16)
	require.NoError(t, other.Leave(t.Context()))
	for _, shard := range renew(first, held) {
		assert.NotContains(t, held, shard)
	}
}

// renewed returns the leases that the relay has after a renewal.
func renewed(t *testing.T, r *store.Relay, hold []int16) (held step.Release) {
	t.Helper()
	answer := r.Renew(t.Context(), step.Renew{Hold: hold})
	require.NoError(t, answer.Err)
	for _, l := range answer.Held {
		held.Shards, held.Terms = append(held.Shards, l.Shard), append(held.Terms, l.Term)
	}
	return held
}

// The server executes the release of a lease when its relay has taken the shard again. It freed a shard that a relay held.
func TestLateReleaseFreesNothing(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	r := store.NewRelay(pool, schema, uuid.New(), "relay", time.Hour, 0)
	free := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from `+schema+`.outbox_shard where expires_at <= now()`).Scan(&n))
		return n
	}
	first := renewed(t, r, nil)
	require.NoError(t, r.Release(t.Context(), first))
	require.Equal(t, 16, free())
	again := renewed(t, r, nil)
	require.NoError(t, r.Release(t.Context(), first))
	require.Zero(t, free())
	again = renewed(t, r, again.Shards)
	require.NoError(t, r.Release(t.Context(), again), "a renewal changes no term")
	require.Equal(t, 16, free())
	require.NoError(t, r.Leave(t.Context()))
}

// The server executes a statement when its relay has taken the shard again. The new lease knew nothing of the event that was set aside,
// and later events of its key were published before it.
func TestLateStatementsOfALeaseChangeNothing(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	r := store.NewRelay(pool, schema, uuid.New(), "relay", time.Hour, 0)
	first := renewed(t, r, nil)
	require.NoError(t, r.Release(t.Context(), first))
	terms := []int64{first.Terms[0], renewed(t, r, nil).Terms[0]}
	require.NotEqual(t, terms[0], terms[1])
	exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) values (0, 1, 'e', 't', 'k', '{}', 'p')`)
	exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, command) values (1, 0, 0, 'f', 't', 'l', '{}', 'p', now(), 'dead', 'discard')`)
	for i, term := range terms {
		lease := step.Ref{Term: term}
		moved := r.SetAside(t.Context(), step.SetAside{Ref: lease, Events: []step.Aside{{Event: &step.Event{Row: step.Row{Seq: 1, EventID: "e"}}, State: step.Dead}}})
		require.NoError(t, moved.Err)
		assert.Equal(t, step.WasSetAside{Ref: lease, Leased: i == 1, Moved: i}, moved)
		fetched := r.FetchFailed(t.Context(), step.FetchFailed{Ref: lease, Heads: 1, PerKey: 1, Bytes: 1})
		require.NoError(t, fetched.Err)
		assert.Len(t, fetched.Freed, i)
	}
	require.NoError(t, r.Leave(t.Context()))
}

// What became of an event is recorded, unless an operator has discarded it meanwhile.
func TestDiscardedEventStaysDiscarded(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), pgschema.Render(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state)
		values (1, 0, 1, 'e', 't', 'k', '{}', 'p', now(), 'blocked'), (1, 0, 2, 'f', 't', 'k', '{}', 'p', now(), 'discarded')`, schema))
	require.NoError(t, err)
	again := []step.Again{{ID: 1, State: step.Dead}, {ID: 2, State: step.Dead}}
	require.NoError(t, store.NewRelay(pool, schema, uuid.New(), "", time.Hour, 0).SettleFailed(t.Context(), step.SettleFailed{Again: again}).Err)
	var states []string
	require.NoError(t, pool.QueryRow(t.Context(), `select array_agg(state order by id) from `+schema+`.outbox_failed`).Scan(&states))
	assert.Equal(t, []string{"dead", "discarded"}, states)
}

// How many relays ended over an event is known until a relay has survived it, whatever other events relays note before they send it.
func TestSuspectIsKnownUntilARelaySurvivesIt(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	for _, c := range []struct {
		notes    []string // "-": the relay survives the event before
		suspect  string   // for the next relay
		deaths   int
		released bool
	}{
		{[]string{"p"}, "p", 1, false},
		{[]string{"a", "b", "-", "p"}, "p", 2, false},
		{[]string{"a", "-"}, "p", 2, false},
		{[]string{"a"}, "p", 2, true},
		{[]string{"p"}, "p", 3, false},
		{[]string{"a", "p", "-"}, "", 0, false},
		{[]string{"p"}, "p", 1, false},
		{[]string{"p", "a", "-"}, "", 0, false},
		{[]string{"p"}, "p", 1, false},
		{[]string{"p", "a"}, "a", 1, false},
	} {
		r := store.NewRelay(pool, schema, uuid.New(), "", time.Hour, 0)
		held := renewed(t, r, nil)
		require.Len(t, held.Shards, 16)
		for i, n := range c.notes {
			if n == "-" {
				require.NoError(t, r.Survived(t.Context(), 0, c.notes[i-1]))
			} else {
				require.NoError(t, r.Note(t.Context(), 0, n))
			}
		}
		require.Len(t, renewed(t, r, held.Shards).Shards, 16, "a renewal changes nothing")
		if c.released {
			require.NoError(t, r.Leave(t.Context()))
		}
		gone, end := context.WithCancel(t.Context())
		end()
		require.Error(t, r.Renew(gone, step.Renew{}).Err)
		for _, table := range []string{"outbox_shard", "outbox_relay"} {
			_, err := pool.Exec(t.Context(), `update `+schema+`.`+table+` set expires_at = now()`)
			require.NoError(t, err)
		}
		next := store.NewRelay(pool, schema, uuid.New(), "", time.Hour, 0)
		answer := next.Renew(t.Context(), step.Renew{})
		require.NoError(t, answer.Err)
		i := slices.IndexFunc(answer.Held, func(l step.Lease) bool { return l.Shard == 0 })
		assert.Equal(t, c.suspect, answer.Held[i].Suspect, c)
		assert.Equal(t, c.deaths, answer.Held[i].SuspectDeaths, c)
		require.NoError(t, next.Leave(t.Context()))
	}
}

// A connection takes longer than a quarter of a lease, because the password comes from a slow source. The relay gets its leases.
func TestRenewWithASlowConnection(t *testing.T) {
	t.Parallel()
	schema := devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), devtest.Pool(t), schema))
	const ttl = 2 * time.Second
	cfg := devtest.Pool(t).Config()
	cfg.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
		select {
		case <-time.After(ttl / 2):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	r := store.NewRelay(pool, schema, uuid.New(), "slow", ttl, 0)
	answer := r.Renew(t.Context(), step.Renew{})
	require.ErrorIs(t, answer.Err, context.DeadlineExceeded)
	assert.Eventually(t, func() bool {
		answer = r.Renew(t.Context(), step.Renew{})
		return answer.Err == nil
	}, time.Minute, time.Millisecond)
	assert.Len(t, answer.Held, 16)
	require.NoError(t, r.Leave(t.Context()))
}
