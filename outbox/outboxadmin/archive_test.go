package outboxadmin_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// The pages of a list have each event that is selected once, the newest first, also where many were published at one time.
func TestListArchive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const keys, each = 5, 60
	f.archive(keys, each)
	var want []string
	for i := each - 1; i >= 0; i-- {
		want = append(want, fmt.Sprintf("e%d-2", i))
	}
	list := func(s outboxadmin.ArchiveSelection, limit int) (ids []string) {
		var at outboxadmin.ArchivePosition
		for range keys * each {
			page, next, err := outboxadmin.ListArchive(t.Context(), f.pool, f.schema, s, at, limit)
			require.NoError(t, err)
			for _, e := range page {
				ids = append(ids, e.EventID)
			}
			require.LessOrEqual(t, len(page), limit)
			if next == nil {
				return ids
			}
			at = *next
		}
		require.Fail(t, "the list does not end")
		return nil
	}
	assert.Equal(t, want, list(outboxadmin.ArchiveSelection{Key: "k2"}, 7))
	assert.Len(t, list(outboxadmin.ArchiveSelection{}, 7), keys*each)
	assert.Len(t, list(outboxadmin.ArchiveSelection{Topic: "topic"}, 1000), keys*each)
	assert.Empty(t, list(outboxadmin.ArchiveSelection{Topic: "other"}, 7))
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	assert.Len(t, list(outboxadmin.ArchiveSelection{Since: at(1), Until: at(3)}, 10), 2*7*keys)
	for _, s := range []outboxadmin.ArchiveSelection{{Since: at(2), Until: at(1)}} {
		_, _, err := outboxadmin.ListArchive(t.Context(), f.pool, f.schema, s, outboxadmin.ArchivePosition{}, 7)
		require.ErrorContains(t, err, "want a time before Until")
		_, err = outboxadmin.SampleArchive(t.Context(), f.pool, f.schema, s)
		require.ErrorContains(t, err, "want a time before Until")
	}
	_, _, err := outboxadmin.ListArchive(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{}, outboxadmin.ArchivePosition{}, 0)
	require.ErrorContains(t, err, "limit is 0")
}

// What lies behind the 20,000 newest events is not counted, and the count says so; a list finds it on later pages.
func TestTheArchiveIsSearchedInParts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table {schema}.outbox_archive_before partition of {schema}.outbox_archive default`)
	f.exec(`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
		select timestamptz '2026-01-01Z' + n * interval '1 ms', 0, n, 'e' || n, case when n = 1 then 'rare' else 'topic' end, 'k' || n % 2, '', '', now() from generate_series(1, 45000) n`)
	sample := func(s outboxadmin.ArchiveSelection) outboxadmin.ArchiveSample {
		a, err := outboxadmin.SampleArchive(t.Context(), f.pool, f.schema, s)
		require.NoError(t, err)
		return a
	}
	assert.Equal(t, outboxadmin.Count{N: 20_000, AtLeast: true}, sample(outboxadmin.ArchiveSelection{}).Selected)
	assert.Equal(t, outboxadmin.Count{N: 10_000, AtLeast: true}, sample(outboxadmin.ArchiveSelection{Key: "k1"}).Selected)
	assert.Equal(t, outboxadmin.Count{AtLeast: true}, sample(outboxadmin.ArchiveSelection{Topic: "rare"}).Selected)
	second := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	a := sample(outboxadmin.ArchiveSelection{Until: second})
	assert.Equal(t, outboxadmin.Count{N: 999}, a.Selected)
	require.Len(t, a.Topics, 2)
	assert.EqualValues(t, 998, a.Topics[1].Events)
	assert.Equal(t, second.Add(-time.Millisecond), a.Topics[1].Last.UTC())

	var at outboxadmin.ArchivePosition
	for part := 1; part <= 3; part++ {
		page, next, err := outboxadmin.ListArchive(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{Topic: "rare"}, at, 5)
		require.NoError(t, err)
		if part == 3 {
			require.Len(t, page, 1)
			assert.Equal(t, "e1", page[0].EventID)
			assert.Nil(t, next)
			break
		}
		assert.Empty(t, page)
		require.NotNil(t, next)
		assert.EqualValues(t, 45_000-20_000*part+1, next.Seq)
		at = *next
	}
}

// A replay that was begun is continued by another process, stopped by a third one, and goes on where it was at another rate.
func TestReplayIsStoppedAndResumed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const keys, each = 4, 50
	f.archive(keys, each)
	id, err := outboxadmin.BeginReplay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{ArchiveSelection: outboxadmin.ArchiveSelection{Topic: "topic"}, To: "again", Rate: 4}, me)
	require.NoError(t, err)
	show := func() outboxadmin.ReplayStatus {
		r, err := outboxadmin.ShowReplay(t.Context(), f.pool, f.schema, id)
		require.NoError(t, err)
		return r
	}
	r := show()
	assert.Equal(t, outboxadmin.ReplayRunning, r.State)
	assert.Equal(t, "a test, because, topic, again", r.Actor+", "+r.Note+", "+r.Selection.Topic+", "+r.To)
	assert.False(t, r.Selection.Until.IsZero(), "its end is set")
	assert.Equal(t, outboxadmin.Count{N: keys * each}, r.Selected)
	assert.Nil(t, r.At)

	ended := make(chan outboxadmin.ReplayStatus)
	for range 2 { // which keep the rate together
		go func() {
			r, err := outboxadmin.ContinueReplay(t.Context(), f.pool, f.schema, id)
			assert.NoError(t, err)
			ended <- r
		}()
	}
	require.Eventually(t, func() bool { return show().Events > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, outboxadmin.StopReplay(t.Context(), f.pool, f.schema, id, outboxadmin.By{Actor: "grace", Note: "too early"}))
	for range 2 {
		assert.Equal(t, outboxadmin.ReplayStopped, (<-ended).State)
	}
	stopped := show()
	assert.Equal(t, "grace", stopped.StoppedBy)
	assert.LessOrEqual(t, float64(stopped.Events), 1+4*stopped.Stepped.Sub(stopped.Started).Seconds())
	require.ErrorIs(t, outboxadmin.StopReplay(t.Context(), f.pool, f.schema, id, me), outboxadmin.ErrNoSuchReplay)
	r, err = outboxadmin.ContinueReplay(t.Context(), f.pool, f.schema, id)
	require.NoError(t, err)
	assert.Equal(t, stopped, r, "it stays stopped")

	require.NoError(t, outboxadmin.ResumeReplay(t.Context(), f.pool, f.schema, id, 0, me))
	r, err = outboxadmin.ContinueReplay(t.Context(), f.pool, f.schema, id)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.ReplayDone, r.State)
	assert.EqualValues(t, keys*each, r.Events)
	assert.Equal(t, wanted(keys, each), f.pending(), "each once, and in the order of its key")
	require.ErrorIs(t, outboxadmin.ResumeReplay(t.Context(), f.pool, f.schema, id, 0, me), outboxadmin.ErrNoSuchReplay)
	_, err = outboxadmin.ContinueReplay(t.Context(), f.pool, f.schema, 77)
	require.ErrorIs(t, err, outboxadmin.ErrNoSuchReplay)
	require.ErrorContains(t, outboxadmin.ResumeReplay(t.Context(), f.pool, f.schema, id, -1, me), "Rate is -1")

	audit, err := outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	var did []string
	for _, a := range audit {
		did = append(did, a.Actor+": "+a.Action)
	}
	assert.Equal(t, []string{"a test: resume replay", "grace: stop replay", "a test: replay"}, did)
	assert.JSONEq(t, fmt.Sprintf(`{"note": "too early", "replay": %d}`, id), string(audit[1].Detail))
	all, err := outboxadmin.ListReplays(t.Context(), f.pool, f.schema, 10)
	require.NoError(t, err)
	assert.Equal(t, []outboxadmin.ReplayStatus{r}, all, "the other actions are none")
}

// Replay ends where somebody has stopped it, says who, and its ID continues it.
func TestReplaySaysWhoHasStoppedIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.archive(2, 10)
	stop := func(p outboxadmin.ReplayProgress) {
		if p.Events > 0 {
			assert.NoError(t, outboxadmin.StopReplay(context.Background(), f.pool, f.schema, p.ID, outboxadmin.By{Actor: "grace"}))
		}
	}
	p, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{Rate: 40, Progress: stop}, me)
	require.ErrorContains(t, err, "grace has stopped it")
	assert.EqualValues(t, 10, p.Events)
	p, err = outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{Resume: p.ID}, me)
	require.NoError(t, err)
	assert.EqualValues(t, 20, p.Events)
}
