package claim_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// flow is how the fixture's consumer does.
func (f *fixture) flow() claim.Flow {
	f.t.Helper()
	all, err := claim.InspectFlows(f.t.Context(), f.pool, f.schema)
	require.NoError(f.t, err)
	for _, one := range all.Consumers {
		if one.Consumer == "labour/notify" {
			return one
		}
	}
	return claim.Flow{}
}

// total adds up the last hour.
func total(of claim.Flow) (sum claim.FlowMinute) {
	for _, m := range of.Minutes {
		sum.Handled += m.Handled
		sum.Duplicates += m.Duplicates
		sum.Contended += m.Contended
		sum.Failed += m.Failed
		sum.Busy += m.Busy
		sum.Longest = max(sum.Longest, m.Longest)
	}
	return sum
}

// A process counts in memory. What it has counted is in the database soon, and when it stops, in a row for each minute and not for each
// event.
func TestProcessesWriteWhatTheyCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.claim(claim.Config{Logger: silent})
	claim.Hasten(c, 20*time.Millisecond, time.Minute)
	stop := f.running(c)
	handle := func(id string, h message.HandlerFunc) {
		msg, _ := deliver(t, id)
		_, _ = c.Middleware(h)(msg)
	}
	quick := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	handle("slow", func(*message.Message) ([]*message.Message, error) {
		handle("slow", quick) // contended: it is a delivery of its own
		ended, end := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer end()
		<-ended.Done()
		return nil, nil
	})
	for range 99 {
		handle("slow", quick)
	}
	for _, id := range []string{"a", "b", "c"} {
		handle(id, quick)
	}
	handle("bad", failing(errOops))
	require.Eventually(t, func() bool { return total(f.flow()).Failed == 1 }, time.Minute, 10*time.Millisecond, "its beat writes it")
	handle("bad", failing(errOops))
	stop()
	sum := total(f.flow())
	assert.Equal(t, []int64{4, 99, 1, 2}, []int64{sum.Handled, sum.Duplicates, sum.Contended, sum.Failed})
	assert.GreaterOrEqual(t, sum.Longest, 30*time.Millisecond)
	assert.GreaterOrEqual(t, sum.Busy, sum.Longest)
	assert.LessOrEqual(t, f.count("journal"), 3, "of 106 deliveries")
}

// A journal that cannot be written disturbs nothing, and nothing that was counted is lost.
func TestWithoutJournalAProcessLives(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.claim(claim.Config{Logger: silent})
	claim.Hasten(c, 20*time.Millisecond, time.Minute)
	f.running(c)
	f.exec(`alter table ` + f.schema + `.journal rename to elsewhere`)
	for _, id := range []string{"a", "b"} {
		msg, _ := deliver(t, id)
		_, err := c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
		require.NoError(t, err)
	}
	beat := func() (at time.Time) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select beat_at from `+f.schema+`.claim_run`).Scan(&at))
		return at
	}
	for range 3 {
		before := beat()
		require.Eventually(t, func() bool { return beat().After(before) }, time.Minute, 5*time.Millisecond)
	}
	f.exec(`alter table ` + f.schema + `.elsewhere rename to journal`)
	require.Eventually(t, func() bool { return total(f.flow()).Handled == 2 }, time.Minute, 10*time.Millisecond)
}

// What nobody counts is read from the tables: which events wait, by what they failed last, and which keys are full.
func TestFlowsOfFailedEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assert.Empty(t, f.flow().Consumer)
	f.exec(`insert into ` + f.schema + `.consumer (name) values ('labour/notify'), ('labour/other')`)
	f.exec(`insert into ` + f.schema + `.claim_failed (consumer, record, event_id, state, reason, error, handler, topic, first_at) values
		(1, gen_random_uuid(), 'e1', 'retrying', 'error', 'no user 7', 'h', 't', '2026-01-02 03:00Z'), (1, gen_random_uuid(), 'e2', 'retrying', 'error', 'no user 8', 'h', 't', '2026-01-02 04:00Z'),
		(1, gen_random_uuid(), 'e3', 'blocked', '', '', 'h', 't', '2026-01-02 05:00Z'), (2, gen_random_uuid(), 'e4', 'dead', 'attempts', 'oops', 'h', 't', now())`)
	f.exec(`insert into ` + f.schema + `.claim_key values (1, 'a', 10, now()), (1, 'b', 10, now()), (1, 'c', 2, null)`)
	got := f.flow()
	assert.Equal(t, 3, got.Oldest["retrying"].UTC().Hour())
	assert.Equal(t, 5, got.Oldest["blocked"].UTC().Hour())
	assert.NotContains(t, got.Oldest, "dead")
	assert.Contains(t, got.Error, "error: no user")
	assert.Len(t, got.Group, 8)
	assert.Equal(t, 2, got.Full)
	assert.ElementsMatch(t, []string{"a", "b"}, got.FullKeys)
}

// Where more was counted than is read, the oldest minute is left out, of which only a part was read.
func TestFlowsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into ` + f.schema + `.consumer (name) values ('labour/notify')`)
	f.exec(`insert into ` + f.schema + `.journal select date_trunc('minute', now()) - m * interval '1 minute', 1, run, 1, 0, 0, 0, 0, 0 from generate_series(0, 59) m, generate_series(1, 1000) run`)
	all, err := claim.InspectFlows(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	minutes := all.Consumers[0].Minutes
	require.NotEmpty(t, minutes)
	assert.LessOrEqual(t, len(minutes), 20)
	assert.Equal(t, minutes[0].At, all.Since)
	for _, m := range minutes {
		assert.Equal(t, int64(1000), m.Handled, "no minute was read in part")
	}
}

// The journal's days come and go with those of the record.
func TestJournalHasDays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	days := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from pg_inherits where inhparent = $1::text::regclass`, f.schema+".journal").Scan(&n))
		return n
	}
	require.Equal(t, 9, days(), "yesterday, today and a week")
	f.exec(`create table ` + f.schema + `.journal_20260102 partition of ` + f.schema + `.journal for values from ('2026-01-02Z') to ('2026-01-03Z')`)
	f.exec(`drop table ` + f.schema + `.journal_` + time.Now().UTC().AddDate(0, 0, 7).Format("20060102"))
	require.Equal(t, 9, days())
	f.retain()
	assert.Equal(t, 9, days(), "the old one is gone, and the last one is back")
	var old bool
	require.NoError(t, f.pool.QueryRow(t.Context(), `select to_regclass($1::text) is not null`, f.schema+".journal_20260102").Scan(&old))
	assert.False(t, old)
}
