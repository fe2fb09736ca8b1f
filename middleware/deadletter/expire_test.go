package deadletter_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/pgtx"
)

const day = 24 * time.Hour

// aged is keep for an event that failed two days ago.
func (f *fixture) aged(eventID, consumer, key, state string) {
	f.t.Helper()
	f.keep(eventID, consumer, key, state, "attempts", "oops")
	f.sql(`update {schema}.claim_failed set first_at = now() - interval '2 days', failed_at = now() - interval '2 days' where event_id = $1`, eventID)
}

func (f *fixture) expire(db pgtx.DB, keep map[string]time.Duration) map[string]int {
	f.t.Helper()
	expired, err := deadletter.Expire(f.t.Context(), db, f.schema, keep, me)
	require.NoError(f.t, err)
	return expired
}

// Dead letters of the consumers that are named expire by the time of each; nothing else does. What the broker redelivers is absorbed,
// later events of the key go on, and the audit has each of them. A role of a consumer may do it.
func TestExpire(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := f.as("_c", func(role string) claim.GrantRoles { return claim.GrantRoles{Consumer: role} })
	f.aged("old", "labour/notify", "k", "dead")
	f.aged("behind", "labour/notify", "k", "blocked")
	f.aged("tried", "labour/notify", "", "retrying")
	f.aged("nacked", "labour/notify", "", "nacked")
	f.keep("new", "labour/notify", "", "dead", "attempts", "oops")
	f.aged("kept longer", "labour/bill", "", "dead")
	f.aged("of another service", "billing/notify", "", "dead")
	keep := map[string]time.Duration{"labour/notify": day, "labour/bill": 3 * day}
	assert.Equal(t, map[string]int{"labour/notify": 1}, f.expire(pool, keep))
	assert.Equal(t, map[string]string{
		"behind": "retrying", "tried": "retrying", "nacked": "nacked", "new": "dead", "kept longer": "dead", "of another service": "dead",
	}, f.states())
	assert.Equal(t, []string{"expire old"}, f.audited())
	f.deliver(f.claim(claim.Config{}), "old")
	assert.Zero(t, f.count("effect"))
	assert.Empty(t, f.expire(pool, keep))
}

// What an operator has changed has its time anew, and what a replay has yet to reach is the replay's, until nobody has continued that
// for a day. A replay that was stopped or is done keeps nothing.
func TestExpireLeavesWhatOperatorsWorkOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keep := map[string]time.Duration{"labour/notify": day}
	for _, id := range []string{"edited", "edited long ago"} {
		f.aged(id, "labour/notify", "", "dead")
		require.NoError(t, deadletter.Edit(t.Context(), f.pool, f.schema, id, "", deadletter.Change{Payload: []byte("mended")}, me))
	}
	f.sql(`update {schema}.claim_audit set at = at - interval '25 hours' where event_id = 'edited long ago'`)
	require.NoError(t, deadletter.AuditReveal(t.Context(), f.pool, f.schema, "edited long ago", "labour/notify", me), "who looks changes nothing")
	require.Error(t, deadletter.AuditReveal(t.Context(), f.pool, f.schema, "edited long ago", "labour/notify", deadletter.By{}))
	f.aged("replayed", "labour/notify", "", "dead")
	begin := func() int64 {
		id, err := deadletter.BeginReplay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"replayed"}}, deadletter.Pace{MaxFailed: 1}, me)
		require.NoError(t, err)
		return id
	}
	begin()
	f.aged("after the replay began", "labour/notify", "", "dead")
	assert.Equal(t, map[string]int{"labour/notify": 1}, f.expire(f.pool, keep))
	assert.Equal(t, map[string]string{"edited": "dead", "edited long ago": "dead", "replayed": "dead"}, f.states(), "the replay has yet to reach them")
	f.sql(`update {schema}.claim_replay set state = 'stopped'`)
	assert.Equal(t, map[string]int{"labour/notify": 2}, f.expire(f.pool, keep))
	assert.Equal(t, map[string]string{"edited": "dead"}, f.states())

	f.aged("replayed", "labour/notify", "", "dead")
	id := begin()
	_, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Empty(t, f.expire(f.pool, keep))
	assert.Equal(t, "retrying", f.states()["replayed"], "it is being tried")
	f.sql(`update {schema}.claim_failed set state = 'dead', due_at = null where event_id = 'replayed'`)
	assert.Empty(t, f.expire(f.pool, keep), "an operator has replayed it today")
	f.sql(`update {schema}.claim_audit set at = at - interval '25 hours'`)
	f.sql(`update {schema}.claim_replay set state = 'running', above = 0, stepped_at = now() - interval '25 hours'`)
	assert.Equal(t, map[string]int{"labour/notify": 2}, f.expire(f.pool, keep), "nobody continues the replay")
	assert.Empty(t, f.states())
}

// An event that somebody has locked is left alone, and so is one that an operator edits while Expire waits for its key.
func TestExpireBesideAnEdit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keep := map[string]time.Duration{"labour/notify": day}
	f.aged("1", "labour/notify", "k", "dead")
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from `+f.schema+`.claim_failed for update`)
	require.NoError(t, err)
	assert.Empty(t, f.expire(f.pool, keep))
	require.NoError(t, tx.Rollback(t.Context()))

	tx, err = f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from `+f.schema+`.claim_key for update`)
	require.NoError(t, err)
	expired := make(chan map[string]int)
	go func() {
		found, err := deadletter.Expire(context.Background(), f.pool, f.schema, keep, me)
		assert.NoError(t, err)
		expired <- found
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity
			where wait_event_type = 'Lock' and query like '%insert into ' || $1 || '.claim_key%')`, `"`+f.schema+`"`).Scan(&waits)
		return err == nil && waits
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, deadletter.Edit(t.Context(), f.pool, f.schema, "1", "", deadletter.Change{Payload: []byte("mended")}, me))
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Empty(t, <-expired)
	assert.Equal(t, map[string]string{"1": "dead"}, f.states())
}

// More than one batch, in several processes at once: each event expires once.
func TestExpireInBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const events = 2500
	f.aged("0", "labour/notify", "", "dead")
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, state, reason, failed_at)
		select consumer, gen_random_uuid(), 'e' || n, 'dead', 'attempts', failed_at - n % 2 * interval '1 hour'
		from {schema}.claim_failed, generate_series(1, $1::int) n`, events-1)
	var mu sync.Mutex
	var all sync.WaitGroup
	total := 0
	for range 3 {
		all.Go(func() {
			expired, err := deadletter.Expire(t.Context(), f.pool, f.schema, map[string]time.Duration{"labour/notify": day, "labour/bill": day}, me)
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			total += expired["labour/notify"]
		})
	}
	all.Wait()
	assert.Equal(t, events, total)
	assert.Zero(t, f.count("claim_failed"))
	assert.Equal(t, events, f.count("claim_audit where action = 'expire'"))
}

func TestExpireOfNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assert.Empty(t, f.expire(f.pool, nil))
	_, err := deadletter.Expire(t.Context(), f.pool, f.schema, map[string]time.Duration{"labour/notify": 0}, me)
	require.EqualError(t, err, `expire dead letters: those of consumer "labour/notify" are kept for 0s: want more than 0`)
	_, err = deadletter.Expire(t.Context(), f.pool, f.schema, map[string]time.Duration{"labour/notify": day}, deadletter.By{})
	require.ErrorContains(t, err, fmt.Sprint(deadletter.By{}.Validate()))
}
