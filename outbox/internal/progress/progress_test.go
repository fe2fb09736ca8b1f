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
	s := New(10)
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

// Published rows that fill the progress stand behind all rows of the batch, as after two relays that were killed and a restore. One row goes beyond the
// limit. While it waits for its delete no other does.
func TestFullProgressDoesNotStopTheShard(t *testing.T) {
	t.Parallel()
	at := func(n int64) time.Time { return time.Unix(0, n) }
	first, second := &step.Row{Seq: 1, EventID: "first", Read: at(9)}, &step.Row{Seq: 2, EventID: "second", Read: at(9)}
	published := []ID{IDOf(8, "a"), IDOf(9, "b")}
	s := New(len(published))
	looks := func(b *Batch, progress []ID) {
		for n := range 2 { // once more because it is full
			if n > 0 || !s.open {
				require.Equal(t, Take{}, b.Next())
				b.Taken(at(1), progress, nil)
			}
			if s.looked {
				continue
			}
			look, ok := b.Next().(Look)
			require.True(t, ok)
			require.ElementsMatch(t, progress, look.IDs)
			b.Looked(at(2), look.IDs, look.IDs, nil)
		}
	}
	b := s.Begin([]*step.Row{first, second})
	looks(b, published)
	send, ok := b.Next().(Send)
	require.True(t, ok)
	require.Equal(t, []*step.Row{first}, send.Rows)
	more := append(slices.Clone(published), IDOf(1, "first"))
	require.ElementsMatch(t, more, send.Progress)
	b.Sent([]error{nil})
	require.Equal(t, Done{[]error{nil, ErrFull}}, b.Next())

	b = s.Begin([]*step.Row{first, second})
	looks(b, more)
	require.Equal(t, Done{[]error{nil, ErrFull}}, b.Next())

	s.Deleted(first)
	b = s.Begin([]*step.Row{second})
	looks(b, published)
	send, ok = b.Next().(Send)
	require.True(t, ok)
	require.Equal(t, []*step.Row{second}, send.Rows)
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
	_, err = Decode(Encode(want)[:30])
	require.Error(t, err)
	assert.Len(t, slices.Collect(maps.Keys(map[ID]bool{IDOf(1, "a"): true, IDOf(1, "b"): true, IDOf(2, "a"): true})), 3)
}
