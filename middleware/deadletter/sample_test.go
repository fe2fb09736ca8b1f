package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/deadletter"
)

// A page of the console read all dead letters to group them. The oldest of 12,000 are not read, and the sample says so.
func TestSampleGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sample := func(s deadletter.Selection) deadletter.Sample {
		t.Helper()
		found, err := deadletter.SampleGroups(t.Context(), f.pool, f.schema, s)
		require.NoError(t, err)
		return found
	}
	f.keep("old", "labour/notify", "", "dead", "permanent", "no user 1")
	f.sql(`update {schema}.claim_failed set topic = 'rare'`)
	f.keep("blocked", "labour/notify", "k", "blocked", "blocked", "")
	all := sample(deadletter.Selection{})
	assert.Equal(t, []any{1, 1, false}, []any{all.Events, all.Selected, all.AtLeast}, "dead letters alone")
	require.Len(t, all.Groups, 1)
	assert.Equal(t, "permanent: no user <n>", all.Groups[0].Text)
	rare := all.Groups[0].Group
	assert.Equal(t, 2, sample(deadletter.Selection{States: []string{"dead", "blocked"}}).Selected)

	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, state, attempts, reason, error, handler, topic, first_at, failed_at)
		select 1, gen_random_uuid(), 'e' || n, 'dead', 3, 'attempts', 'oops ' || n, 'handler', 'topic', now() - n * interval '1 s', now() - n * interval '1 s' from generate_series(1, 12000) n`)
	all = sample(deadletter.Selection{})
	assert.Equal(t, []any{2000, 12_001, false}, []any{all.Events, all.Selected, all.AtLeast}, "all are counted")
	require.Len(t, all.Groups, 1)
	assert.Equal(t, 2000, all.Groups[0].Events)
	assert.Equal(t, []string{"labour/notify"}, all.Groups[0].Consumers)
	assert.True(t, all.Groups[0].First.Before(all.Groups[0].Last))
	of := sample(deadletter.Selection{Group: rare, Consumer: "labour/notify"})
	assert.Equal(t, 1, of.Selected)
	of = sample(deadletter.Selection{Group: rare})
	assert.Equal(t, []any{1, 1, false}, []any{of.Events, of.Selected, of.AtLeast}, "its index has it")
	assert.Zero(t, sample(deadletter.Selection{Consumer: "nobody"}).Selected)
	of = sample(deadletter.Selection{Topic: "rare"})
	assert.Equal(t, []any{0, 0, true, 10_000}, []any{of.Events, of.Selected, of.AtLeast, of.Searched}, "it is older than the 10,000 that are searched")
	of = sample(deadletter.Selection{Reason: "attempts"})
	assert.Equal(t, []any{2000, 2000, true, 0}, []any{of.Events, of.Selected, of.AtLeast, of.Searched})
	assert.Equal(t, 10, sample(deadletter.Selection{EventIDs: []string{"e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8", "e9", "e10"}}).Selected)

	counts, err := deadletter.Counts(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, map[string]map[string]int{"labour/notify": {"dead": 12_001, "blocked": 1}}, counts)
	_, err = deadletter.SampleGroups(t.Context(), f.pool, f.schema, deadletter.Selection{States: []string{"lost"}})
	require.ErrorContains(t, err, `state is "lost"`)
}

func TestListNewest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"e1", "e2", "e3"} {
		f.keep(id, "labour/notify", "k", "dead", "attempts", "oops")
	}
	f.keep("e4", "labour/count", "k", "blocked", "blocked", "")
	list := func(l deadletter.Listing) (ids []string, last int64) {
		found, _, err := deadletter.ListNewest(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		for _, e := range found {
			ids, last = append(ids, e.EventID), e.ID
		}
		return ids, last
	}
	page, last := list(deadletter.Listing{Limit: 2})
	assert.Equal(t, []string{"e4", "e3"}, page)
	page, _ = list(deadletter.Listing{Limit: 2, After: last})
	assert.Equal(t, []string{"e2", "e1"}, page)
	for _, s := range []deadletter.Selection{
		{Consumer: "labour/notify"}, {Key: "k", Consumer: "labour/notify"}, {States: []string{"dead"}}, {Reason: "attempts"}, {EventIDs: []string{"e1", "e2", "e3"}}, {Until: time.Now().Add(time.Hour), States: []string{"dead"}},
	} {
		page, _ = list(deadletter.Listing{Selection: s})
		assert.Equal(t, []string{"e3", "e2", "e1"}, page, s)
	}
	page, _ = list(deadletter.Listing{Selection: deadletter.Selection{Since: time.Now().Add(time.Hour)}})
	assert.Empty(t, page)
}

// What is old is found without reading what is newer: by when it failed, and what holds a key up before 10,500 that wait behind it.
func TestTheNewestOfWhatIsOld(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("e0", "labour/notify", "", "dead", "attempts", "")
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, handler, first_at, failed_at)
		select 1, gen_random_uuid(), 'e' || n, 'k', case n when 1 then 'dead' else 'blocked' end, 'handler', at, at
		from (select n, now() - (10500 - n) * interval '1 s' as at from generate_series(1, 10500) n) f`)
	f.sql(`delete from {schema}.claim_failed where event_id = 'e0' or event_id = 'e998'`)
	list := func(s deadletter.Selection) (ids []string) {
		found, _, err := deadletter.ListNewest(t.Context(), f.pool, f.schema, deadletter.Listing{Selection: s, Limit: 3})
		require.NoError(t, err)
		for _, e := range found {
			ids = append(ids, e.EventID)
		}
		return ids
	}
	var first, until time.Time
	require.NoError(t, f.pool.QueryRow(t.Context(), `select min(first_at), max(first_at) filter (where event_id = 'e1000') from `+f.schema+`.claim_failed`).Scan(&first, &until))
	assert.Equal(t, []string{"e999", "e997", "e996"}, list(deadletter.Selection{Until: until}))
	assert.Equal(t, []string{"e999", "e997", "e996"}, list(deadletter.Selection{Until: until, Key: "k", Consumer: "labour/notify"}))
	assert.Empty(t, list(deadletter.Selection{Until: first}))
	assert.Equal(t, []string{"e10500", "e10499", "e10498"}, list(deadletter.Selection{Until: time.Now().Add(time.Hour)}))
	assert.Equal(t, []string{"e1"}, list(deadletter.Selection{Key: "k", States: []string{"dead"}}))
}

// A search of the newest events that has ended tells where it goes on: part by part all that is selected is found, once, whatever the
// selection, and each part reads a bounded number.
func TestTheNewestPartByPart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("e0", "labour/notify", "", "dead", "attempts", "")
	f.keep("x", "labour/count", "", "dead", "attempts", "")
	f.sql(`delete from {schema}.claim_failed`)
	// Of 25,000 events that failed alike each 5,000th is another consumer's, of another topic, dead, and failed again just now.
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, handler, topic, reason, first_at, failed_at)
		select case when rare then 2 else 1 end, gen_random_uuid(), 'e' || n, 'k', case when rare then 'dead' else 'blocked' end, 'handler', case when rare then 'rare' else 'topic' end,
			'attempts', at, case when rare then now() else at end
		from (select n, n % 5000 = 0 as rare, now() - interval '1 day' + n * interval '1 ms' as at from generate_series(1, 25000) n) f`)
	var group string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select min(error_group) from `+f.schema+`.claim_failed`).Scan(&group))
	both := []string{"dead", "blocked"}
	for name, s := range map[string]deadletter.Selection{
		"consumer and cause": {Consumer: "labour/count", Group: group, States: both}, "topic": {Topic: "rare"}, "states of a key": {Key: "k", States: []string{"dead"}}, "since": {Since: time.Now().Add(-time.Hour), States: both},
		"until": {Until: time.Now().Add(time.Hour), States: both, Topic: "rare"}, "one cause": {Group: group, Topic: "rare"},
	} {
		var ids []string
		parts := 0
		for l := (deadletter.Listing{Selection: s, Limit: 2}); parts == 0 || l.After > 0; parts++ {
			require.Less(t, parts, 10, name)
			found, older, err := deadletter.ListNewest(t.Context(), f.pool, f.schema, l)
			require.NoError(t, err, name)
			require.True(t, older == 0 || l.After == 0 || older < l.After, name)
			for _, e := range found {
				ids = append(ids, e.EventID)
			}
			l.After = older
		}
		assert.Equal(t, []string{"e25000", "e20000", "e15000", "e10000", "e5000"}, ids, name)
	}
}
