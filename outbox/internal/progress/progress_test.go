package progress

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// TestEachEventIsPublishedOnce: whatever is late, lost or repeated, and whichever relay believes to hold the shard.
func TestEachEventIsPublishedOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		require.Empty(r, run(rnd.IntN, 1500, breaks{}, histories{}))
	})
}

// TestNoEventIsLostByARestore: the database is set back, or its sequence alone, or the progress is lost, or an older one is back. Events may be
// published again.
func TestNoEventIsLostByARestore(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		require.Empty(r, run(rnd.IntN, 1500, breaks{}, histories{
			restore: rapid.Bool().Draw(r, "restore"), sequence: rapid.Bool().Draw(r, "sequence"),
			lost: rapid.Bool().Draw(r, "lost"), behind: rapid.Bool().Draw(r, "behind"),
		}))
	})
}

// TestWhatEachRuleIsFor: without it, or without the newest progress, an event is published twice or lost.
func TestWhatEachRuleIsFor(t *testing.T) {
	for name, control := range map[string]struct {
		breaks
		histories
	}{
		"numbers in place of IDs": {breaks{rules: func(r *rules) {
			r.id = func(row *step.Row) ID { return ID{Seq: row.Seq} }
		}}, histories{restore: true}},
		"rows are deleted before the transaction's end is known": {breaks: breaks{early: true}},
		"nobody is fenced":                                        {breaks: breaks{unfenced: true}},
		"the progress stands beside the transaction":              {breaks: breaks{beside: true}},
		"the progress is read before it is stable":                {breaks: breaks{unstable: true}},
		"rows that were read before the shard was taken are sent": {breaks: breaks{rules: func(r *rules) { r.stale = func(*step.Row, time.Time) bool { return false } }}},
		"a transaction's end is sent twice":                       {breaks: breaks{twice: true}},
		"a read that is older than a delete counts":               {breaks: breaks{ghosts: true}},
		"an event leaves the progress when its delete is sent":    {breaks: breaks{dropOnSend: true}},
		"an unknown end of a transaction is taken for a commit":   {breaks: breaks{rules: func(r *rules) { r.unknown = func(error) bool { return false } }}},
		"deletes are not durable":                                 {breaks: breaks{asyncDelete: true}},
		"rows are looked for before the shard is taken":           {breaks: breaks{lookFirst: true}},
		"a delete of an earlier lease counts":                     {breaks: breaks{rules: func(r *rules) { r.same = func(_, _ *step.Row) bool { return true } }}},
		"the progress is lost":                                    {breaks{strict: true}, histories{lost: true}},
		"the progress is behind":                                  {breaks{strict: true}, histories{behind: true}},
		"events leave the progress although their rows are there": {breaks: breaks{rules: func(r *rules) { r.stays = func(bool) bool { return false } }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20_000) {
				if wrong := run(rand.New(rand.NewPCG(seed, 1)).IntN, 1500, control.breaks, control.histories); wrong != "" {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			assert.Fail(t, "nothing went wrong")
		})
	}
}

// A read between taking the shard and looking may have a row that is gone when its relay looks, because the former relay's delete came
// last. It has left the progress, but must not be sent.
func TestRowThatWasReadBeforeItsRelayLookedIsLookedFor(t *testing.T) {
	t.Parallel()
	at := func(n int64) time.Time { return time.Unix(0, n) }
	gone, other := &step.Row{Seq: 1, EventID: "gone", Read: at(2)}, &step.Row{Seq: 2, EventID: "other", Read: at(2)}
	ids := []ID{IDOf(1, "gone"), IDOf(2, "other")}
	s := New(10, 10)
	b := s.Begin([]*step.Row{other})
	require.Equal(t, Take{}, b.Next())
	b.Taken(at(1), ids[:1], nil)
	require.Equal(t, Look{ids[:1]}, b.Next())
	b.Looked(at(3), ids[:1], nil, nil)
	require.Equal(t, Look{ids[1:]}, b.Next())
	b.Looked(at(4), ids[1:], ids[1:], nil)
	require.Equal(t, Send{[]*step.Row{other}, ids[1:]}, b.Next())
	b.Sent([]error{nil})

	b = s.Begin([]*step.Row{gone})
	require.Equal(t, Look{ids[:1]}, b.Next())
	b.Looked(at(5), ids[:1], nil, nil)
	assert.Equal(t, Done{[]error{nil}}, b.Next())
}

// After killed relays and a restore, published rows may fill the progress and come after all rows of the batch. The shard goes on until the progress
// has as many events as it may have.
func TestFullProgressDoesNotStopTheShard(t *testing.T) {
	t.Parallel()
	at := func(n int64) time.Time { return time.Unix(0, n) }
	var rows []*step.Row
	for n := range int64(4) {
		rows = append(rows, &step.Row{Seq: n, EventID: "new", Read: at(9)})
	}
	known := []ID{IDOf(8, "published"), IDOf(9, "published")}
	s := New(len(known), 5)
	prune := func(b *Batch) {
		t.Helper()
		require.Equal(t, Take{}, b.Next())
		b.Taken(at(1), known, nil)
		look, ok := b.Next().(Look)
		require.True(t, ok)
		require.ElementsMatch(t, known, look.IDs)
		b.Looked(at(2), look.IDs, look.IDs, nil)
	}
	sends := func(b *Batch, sent ...*step.Row) {
		t.Helper()
		send, ok := b.Next().(Send)
		require.True(t, ok)
		require.Equal(t, sent, send.Rows)
		known = send.Progress
		b.Sent(make([]error, len(sent)))
	}
	b := s.Begin(rows[:1])
	prune(b)
	prune(b)
	sends(b, rows[0])
	b = s.Begin(rows[1:2]) // far below the next prune
	sends(b, rows[1])
	require.Len(t, known, 4)

	b = s.Begin(rows[2:])
	prune(b)
	sends(b, rows[2])
	require.Equal(t, Done{[]error{nil, ErrFull}}, b.Next())
	b = s.Begin(rows[3:])
	prune(b)
	require.Equal(t, Done{[]error{ErrFull}}, b.Next())

	s.Deleted(rows[0])
	known = slices.DeleteFunc(known, func(id ID) bool { return id == IDOf(0, "new") })
	b = s.Begin(rows[3:])
	prune(b)
	sends(b, rows[3])
}

func TestEncoding(t *testing.T) {
	t.Parallel()
	want := []ID{IDOf(1, "a"), IDOf(1<<40, "b"), IDOf(-1, "")}
	got, err := Decode(Encode(want))
	require.NoError(t, err)
	assert.Equal(t, want, got)
	got, err = Decode(nil)
	require.NoError(t, err)
	assert.Empty(t, got)
	_, err = Decode([]byte{2})
	require.ErrorContains(t, err, "use the version of Millrace that has written it")
	assert.Len(t, Encode(make([]ID, Fit(1000))), 1+24*41)
	_, err = Decode(Encode(want)[:30])
	require.Error(t, err)
	assert.Len(t, slices.Collect(maps.Keys(map[ID]bool{IDOf(1, "a"): true, IDOf(1, "b"): true, IDOf(2, "a"): true})), 3)
}
