package deadletter_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// dead makes so many dead letters of one consumer: event-000 and so on.
func (f *fixture) dead(n int) {
	for i := range n {
		f.keep(fmt.Sprintf("event-%03d", i), "labour/notify", "", "dead", "error", "oops")
	}
}

func (f *fixture) begin(pace deadletter.Pace) (id int64) {
	f.t.Helper()
	id, err := deadletter.BeginReplay(f.t.Context(), f.pool, f.schema, deadletter.Selection{Consumer: "labour/notify"}, pace, me)
	require.NoError(f.t, err)
	return id
}

func (f *fixture) shown(id int64) deadletter.ReplayStatus {
	status, err := deadletter.ShowReplay(f.t.Context(), f.pool, f.schema, id)
	require.NoError(f.t, err)
	sum := status.Handled + status.Untried + status.Retrying + status.Dead + status.Superseded
	assert.Equal(f.t, status.Replayed, sum)
	return status
}

// untilReplayed continues the replay until it has replayed so many, and ends then as a process that is killed does: it stops nothing.
func (f *fixture) untilReplayed(id int64, n int) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var continuing sync.WaitGroup
	continuing.Go(func() {
		_, err := deadletter.ContinueReplay(ctx, f.pool, f.schema, id, nil)
		assert.ErrorIs(f.t, err, context.Canceled)
	})
	require.Eventually(f.t, func() bool { return f.count("claim_failed where replayed") >= n }, time.Minute, 5*time.Millisecond)
	cancel()
	continuing.Wait()
	require.Equal(f.t, n, f.count("claim_failed where replayed"))
}

// Two processes keep the pace of one, and when both end in the middle a third one goes on: each event is replayed once.
func TestPacedReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const events, rate, step = 60, 30, 6
	f.dead(events)
	id := f.begin(deadletter.Pace{Rate: rate, MaxFailed: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var continuing sync.WaitGroup
	for range 2 {
		continuing.Go(func() {
			_, err := deadletter.ContinueReplay(ctx, f.pool, f.schema, id, nil)
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	f.keep("late", "labour/notify", "", "dead", "error", "oops")
	for done := 0; done < events/2; {
		status := f.shown(id)
		done = status.Replayed
		assert.Equal(t, deadletter.ReplayRunning, status.State)
		assert.LessOrEqual(t, float64(done), step+rate*status.Stepped.Sub(status.Started).Seconds())
	}
	cancel()
	continuing.Wait()

	seen := 0
	status, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, func(s deadletter.ReplayStatus) {
		assert.GreaterOrEqual(t, s.Replayed, seen)
		seen = s.Replayed
	})
	require.NoError(t, err)
	assert.Equal(t, events, seen)
	assert.Equal(t, deadletter.ReplayDone, status.State)
	assert.Equal(t, []int{events, events, events}, []int{status.Selected, status.Replayed, status.Untried})
	assert.Equal(t, events, f.count("claim_audit where action = 'replay' and detail->>'replay' = '"+fmt.Sprint(id)+"'"), "one row each")
	assert.Equal(t, "dead", f.states()["late"], "it failed after the replay began")
	again, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, status, again)
}

// A replay that may stop by itself goes no further than what consumers have tried allows.
func TestPacedReplayStopsWhenTooMuchFailsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dead(100)
	id := f.begin(deadletter.Pace{MaxFailed: 0.05})
	f.untilReplayed(id, 20)
	assert.Equal(t, 20, f.shown(id).Untried)
	f.sql(`delete from {schema}.claim_failed where event_id < 'event-020'`) // handled
	f.untilReplayed(id, 20)
	f.sql(`delete from {schema}.claim_failed where event_id < 'event-038'`)
	f.sql(`update {schema}.claim_failed set attempts = 1, state = 'dead' where event_id = 'event-038'`)
	f.sql(`update {schema}.claim_failed set attempts = 1 where event_id = 'event-039'`)
	f.untilReplayed(id, 2+40) // two of 40 are not more than a twentieth
	f.sql(`update {schema}.claim_failed set attempts = 1 where event_id between 'event-040' and 'event-042'`)
	status, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, deadletter.ReplayStopped, status.State)
	assert.Equal(t, "of 43 events that were tried 5 have failed again", status.Reason)
	assert.Equal(t, []int{80, 38, 37, 4, 1}, []int{status.Replayed, status.Handled, status.Untried, status.Retrying, status.Dead})

	require.NoError(t, deadletter.ResumeReplay(t.Context(), f.pool, f.schema, id, &deadletter.Pace{MaxFailed: 1}, me))
	status, err = deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, deadletter.ReplayDone, status.State)
	assert.Equal(t, []any{100, ""}, []any{status.Replayed, status.Reason})
}

// bulk puts many events of "labour/notify" into a replay that has replayed them, and so many more that were handled.
func (f *fixture) bulk(replay int64, untried, handled int) {
	_, number := f.record("labour/notify", "none")
	f.sql(`with e as (insert into {schema}.claim_failed (consumer, record, event_id, state, attempts, reason, error, handler, topic, headers, payload, replayed)
			select $1, md5(n::text)::uuid, 'bulk-' || n, 'blocked', 0, 'error', 'oops', 'handler', 'topic', '{}', '', true from generate_series(1, $2::int) n returning id)
		insert into {schema}.claim_replay_event select id, $3::bigint from e`, number, untried, replay)
	f.sql(`update {schema}.claim_replay set replayed = $1, selected = selected + $1 where id = $2`, untried+handled, replay)
}

// A replay that may stop by itself counts no more than 10,000 untried events. With more it took the others for tried, and replayed on
// although consumers had tried few.
func TestPacedReplayWaitsForManyUntriedEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dead(30)
	id := f.begin(deadletter.Pace{MaxFailed: 0.05})
	f.bulk(id, 21_000, 5000)
	ctx, cancel := context.WithCancel(t.Context())
	status, err := deadletter.ContinueReplay(ctx, f.pool, f.schema, id, func(deadletter.ReplayStatus) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, []any{26_000, 20_000, true}, []any{status.Replayed, status.Untried, status.AtLeast})
	f.sql(`delete from {schema}.claim_failed where event_id like 'bulk-%' and event_id < 'bulk-5'`)
	replayed := f.count("claim_failed where replayed") + 30
	_, err = deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, replayed, f.count("claim_failed where replayed"))
}

// Also a replay that never stops by itself forgets the events that were handled.
func TestPacedReplayForgetsWhatWasHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dead(30)
	id := f.begin(deadletter.Pace{MaxFailed: 1})
	f.bulk(id, 4000, 0)
	f.sql(`delete from {schema}.claim_failed where event_id like 'bulk-%'`)
	status, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, []any{4030, 4000, 30, false}, []any{status.Replayed, status.Handled, status.Untried, status.AtLeast})
	assert.Equal(t, 30, f.count("claim_replay_event"))
	f.bulk(id, 2000, 0)
	listed, err := deadletter.ListReplays(t.Context(), f.pool, f.schema, 1)
	require.NoError(t, err)
	assert.True(t, listed[0].AtLeast, "a list counts fewer")
}

// What operators do to the events of a replay before they are handled counts as theirs.
func TestPacedReplayIsSuperseded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dead(10)
	operator := f.as("operator", func(role string) claim.GrantRoles { return claim.GrantRoles{Operator: role} })
	s := deadletter.Selection{Consumer: "labour/notify"}
	id, err := deadletter.BeginReplay(t.Context(), operator, f.schema, s, deadletter.Pace{MaxFailed: 1}, me)
	require.NoError(t, err)
	_, err = deadletter.ContinueReplay(t.Context(), operator, f.schema, id, nil)
	require.NoError(t, err)
	f.sql(`delete from {schema}.claim_failed where event_id = 'event-000'`)
	discarded := deadletter.Selection{EventIDs: []string{"event-001", "event-002"}, States: []string{"retrying"}}
	_, err = deadletter.Discard(t.Context(), operator, f.schema, discarded, me)
	require.NoError(t, err)
	f.sql(`update {schema}.claim_failed set state = 'dead', attempts = 3 where event_id = 'event-003'`)
	_, err = deadletter.Replay(t.Context(), operator, f.schema, s, me)
	require.NoError(t, err)
	status := f.shown(id)
	assert.Equal(t, []int{10, 1, 6, 0, 3}, []int{status.Replayed, status.Handled, status.Untried, status.Dead, status.Superseded})

	f.sql(`update {schema}.claim_replay set ended_at = now() - interval '2 days'`)
	_, err = deadletter.Purge(t.Context(), f.pool, f.schema, 24*time.Hour, me)
	require.NoError(t, err)
	assert.Zero(t, f.count("claim_replay"))
	assert.Zero(t, f.count("claim_replay_superseded"))
}

func TestPacedReplayIsStopped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dead(50)
	id := f.begin(deadletter.Pace{MaxFailed: 0})
	f.untilReplayed(id, 20)
	require.NoError(t, deadletter.StopReplay(t.Context(), f.pool, f.schema, id, me))
	status, err := deadletter.ContinueReplay(t.Context(), f.pool, f.schema, id, nil)
	require.NoError(t, err)
	assert.Equal(t, []any{deadletter.ReplayStopped, "stopped by ada", 20}, []any{status.State, status.Reason, status.Replayed})
	require.ErrorIs(t, deadletter.StopReplay(t.Context(), f.pool, f.schema, id, me), deadletter.ErrNoSuchReplay)
	require.NoError(t, deadletter.ResumeReplay(t.Context(), f.pool, f.schema, id, nil, me))
	assert.Equal(t, deadletter.ReplayRunning, f.shown(id).State)
	listed, err := deadletter.ListReplays(t.Context(), f.pool, f.schema, 10)
	require.NoError(t, err)
	assert.Len(t, listed, 1)
	var did []string
	audit, err := deadletter.ListAudit(t.Context(), f.pool, f.schema, deadletter.AuditListing{AuditPage: deadletter.AuditPage{Limit: 2}})
	require.NoError(t, err)
	for _, a := range audit {
		did = append(did, a.Action)
	}
	assert.Equal(t, []string{"resume replay", "stop replay"}, did)

	require.ErrorIs(t, deadletter.ResumeReplay(t.Context(), f.pool, f.schema, 99, nil, me), deadletter.ErrNoSuchReplay)
	_, err = deadletter.ShowReplay(t.Context(), f.pool, f.schema, 99)
	require.ErrorIs(t, err, deadletter.ErrNoSuchReplay)
	for want, pace := range map[string]deadletter.Pace{
		"Pace.Rate is -1: want 0 or more": {Rate: -1}, "Pace.MaxFailed is 5: want a share from 0 to 1": {MaxFailed: 5}, "Pace.MaxFailed is NaN": {MaxFailed: math.NaN()},
	} {
		_, err := deadletter.BeginReplay(t.Context(), f.pool, f.schema, deadletter.Selection{}, pace, me)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, deadletter.ResumeReplay(t.Context(), f.pool, f.schema, id, &pace, me), want)
	}
	_, err = deadletter.BeginReplay(t.Context(), f.pool, f.schema, deadletter.Selection{Topic: "none"}, deadletter.Pace{}, me)
	require.ErrorIs(t, err, deadletter.ErrNoSuchEvent)
	_, err = deadletter.BeginReplay(t.Context(), f.pool, f.schema, deadletter.Selection{}, deadletter.Pace{}, deadletter.By{})
	require.ErrorContains(t, err, "By.Actor")
}
