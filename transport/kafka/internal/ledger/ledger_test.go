package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story tells a ledger what happens, in milliseconds.
type story struct {
	*testing.T
	*Ledger
	now       time.Time
	partition map[int32]*Partition
}

func newStory(t *testing.T) *story {
	l := &Ledger{limits: Limits{Units: 8, Bytes: 1000, Delay: 100 * time.Millisecond, Idle: 10 * time.Millisecond}}
	s := &story{T: t, Ledger: l, now: time.Unix(0, 0), partition: map[int32]*Partition{0: {Place: Place{Number: 0}}, 1: {Place: Place{Number: 1}}}}
	require.Equal(t, Fence, s.step())
	l.Fenced(s.now, nil)
	require.Equal(t, Wait, s.step())
	return s
}

func (s *story) step() Step {
	step, _ := s.Next(s.now)
	return step
}

func (s *story) after(ms int) *story {
	s.now = s.now.Add(time.Duration(ms) * time.Millisecond)
	return s
}

// adds adds units of 100 bytes, which a transaction may have ten of.
func (s *story) adds(partition int32, offsets ...int64) *story {
	for _, offset := range offsets {
		s.Add(s.now, &Unit{Partition: s.partition[partition], Offset: offset, Bytes: 100})
	}
	return s
}

// commits requires that the next transaction is of these offsets.
func (s *story) commits(offsets ...int64) {
	s.Helper()
	require.Equal(s, Commit, s.step())
	var of []int64
	for _, u := range s.batch {
		of = append(of, u.Offset)
	}
	require.Equal(s, offsets, of)
	require.Equal(s, Wait, s.step(), "one at a time")
}

// fails ends the transaction so, and goes on to what the group tells.
func (s *story) fails(outcome Outcome, verdict Verdict) {
	s.Helper()
	require.Empty(s, s.Ended(s.now, outcome))
	require.Equal(s, Fence, s.step())
	s.Fenced(s.now, nil)
	require.Equal(s, Resolve, s.step())
	s.Resolved(s.now, verdict)
}

func TestTransactionIsDue(t *testing.T) {
	t.Parallel()
	t.Run("when nothing more comes", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).after(9).adds(1, 2).after(9)
		step, due := s.Next(s.now)
		require.Equal(t, Wait, step)
		require.Equal(t, time.Millisecond, due.Sub(s.now))
		s.after(1).commits(1, 2)
		s.Ended(s.now, Committed)
		require.True(t, s.Settled(s.partition[0]))
		require.Equal(t, Wait, s.step())
	})
	t.Run("after the delay", func(t *testing.T) {
		s := newStory(t)
		s.limits.Units, s.limits.Bytes = 100, 1e6
		for i := range int64(14) {
			require.Equal(t, Wait, s.adds(0, i).after(7).step(), i)
		}
		require.Equal(t, Wait, s.adds(1, 99).after(1).step())
		require.Equal(t, Commit, s.after(1).step())
	})
	t.Run("when it is full", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1, 2, 3, 4, 5, 6, 7)
		require.Equal(t, Wait, s.step())
		s.adds(1, 8, 9).commits(1, 2, 3, 4, 5, 6, 7, 8)
		s.Ended(s.now, Committed)
		require.Equal(t, Wait, s.step())
		s.after(10).commits(9)
	})
	t.Run("when it is large", func(t *testing.T) {
		s := newStory(t)
		s.limits.Units = 100
		s.adds(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
		s.commits(1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
	})
	t.Run("when one message is too large", func(t *testing.T) {
		s := newStory(t)
		s.Add(s.now, &Unit{Partition: s.partition[0], Offset: 1, Bytes: 5000}, &Unit{Partition: s.partition[0], Offset: 2})
		s.commits(1)
		require.True(t, s.Full(s.partition[0]))
		s.Ended(s.now, Committed)
		require.False(t, s.Full(s.partition[0]))
	})
	t.Run("when a partition is given up", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).adds(1, 2)
		s.partition[1].Flush = true
		s.commits(1, 2)
	})
	t.Run("at the end", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1)
		s.Close()
		s.commits(1)
		s.Ended(s.now, Committed)
		require.Equal(t, Stop, s.step())
	})
}

func TestTransactionRecovers(t *testing.T) {
	t.Parallel()
	t.Run("it had committed", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1, 2).after(10).commits(1, 2)
		s.adds(0, 3)
		s.fails(Failed, Done)
		require.False(t, s.Settled(s.partition[0]))
		s.after(10).commits(3)
	})
	t.Run("it had not", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1, 2).after(10).commits(1, 2)
		s.adds(0, 3)
		s.fails(Failed, Replay)
		s.commits(1, 2, 3)
	})
	t.Run("nobody can tell for a while", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).after(10).commits(1)
		s.Ended(s.now, Failed)
		s.Fenced(s.now, errors.New("no coordinator"))
		require.Equal(t, Wait, s.step(), "not at once")
		require.Equal(t, Fence, s.after(1000).step())
		s.Fenced(s.now, nil)
		require.Equal(t, Resolve, s.step())
		s.Resolved(s.now, Unknown)
		require.Equal(t, Wait, s.step(), "not at once")
		require.Equal(t, Resolve, s.after(1000).step())
		s.Resolved(s.now, Replay)
		s.commits(1)
	})
	t.Run("it is another member's", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).adds(1, 5).after(10).commits(1, 5)
		s.adds(0, 2)
		s.Ended(s.now, Failed)
		s.Fenced(s.now, nil)
		require.Equal(t, Resolve, s.step())
		require.ElementsMatch(t, []*Partition{s.partition[0], s.partition[1]}, s.Resolved(s.now, Foreign))
		s.adds(0, 3)
		require.Equal(t, Wait, s.after(1000).step(), "nothing of it is committed")
	})
	t.Run("the coordinator says so", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).after(10).commits(1)
		require.Equal(t, []*Partition{s.partition[0]}, s.Ended(s.now, Lost))
		require.Equal(t, Fence, s.step(), "what is open is ended nevertheless")
		s.Fenced(s.now, nil)
		require.Equal(t, Wait, s.step())
	})
	t.Run("a partition was given up meanwhile", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).adds(1, 5).after(10).commits(1, 5)
		s.Drop(s.partition[0])
		s.fails(Failed, Replay)
		s.commits(5)
	})
	t.Run("all were given up meanwhile", func(t *testing.T) {
		s := newStory(t)
		s.adds(0, 1).after(10).commits(1)
		s.Drop(s.partition[0])
		s.Close()
		s.Ended(s.now, Failed)
		require.Equal(t, Fence, s.step())
		s.Fenced(s.now, nil)
		require.Equal(t, Stop, s.step())
	})
}

// TestRefusedOutputDelaysNobodyElse: while one partition waits for its next attempt, the ledger's owner sleeps until then. What
// comes of another partition wakes it.
func TestRefusedOutputDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(s *story){
		"refused": func(s *story) {
			s.fails(Refused, Replay)
			require.Equal(s, DeadLetter, s.step())
			s.DeadLettered(s.now, false)
		},
		"withheld": func(s *story) { s.Withheld(s.now, []*Partition{s.partition[0]}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.partition[0].Failures = 20
			s.adds(0, 1).after(10).commits(1)
			wait(s)
			step, alarm := s.Next(s.now)
			require.Equal(t, Wait, step)
			require.GreaterOrEqual(t, alarm.Sub(s.now), time.Second)
			require.False(t, s.Add(s.now, &Unit{Partition: s.partition[0], Offset: 2}), "it waits behind the first")
			require.True(t, s.Add(s.now, &Unit{Partition: s.partition[1], Offset: 5}))
			s.commits(5)
			s.Ended(s.now, Committed)
			require.Equal(t, Wait, s.step())
			require.True(t, s.Add(s.now, &Unit{Partition: s.partition[1], Offset: 6}))
			step, due := s.Next(s.now)
			require.Equal(t, Wait, step)
			require.LessOrEqual(t, due.Sub(s.now), 10*time.Millisecond)
			require.False(t, s.Add(s.now, &Unit{Partition: s.partition[1], Offset: 7}), "the owner wakes early enough")
			s.after(10).commits(6, 7)
			s.Ended(s.now, Committed)
			s.after(int(alarm.Sub(s.now) / time.Millisecond)).commits(1)
		})
	}
}

// TestTransactionFindsWhatIsRefused: all but one of the messages are committed, and of that one's partition those before.
func TestTransactionFindsWhatIsRefused(t *testing.T) {
	t.Parallel()
	for guilty := int64(1); guilty <= 8; guilty++ {
		s := newStory(t)
		s.adds(0, 1, 2, 3, 4).adds(1, 5, 6, 7, 8)
		var done []int64
		transactions := 0
		run := func() Step {
			for {
				switch step := s.step(); step {
				case Commit:
					transactions++
					outcome := Committed
					var of []int64
					for _, u := range s.batch {
						of = append(of, u.Offset)
						if u.Offset == guilty && !u.Dead {
							outcome = Refused
						}
					}
					if outcome == Committed {
						done = append(done, of...)
					}
					s.Ended(s.now, outcome)
				case Fence:
					s.Fenced(s.now, nil)
				case Resolve:
					s.Resolved(s.now, Replay)
				case DeadLetter, Wait, Stop:
					return step
				}
			}
		}
		require.Equal(t, DeadLetter, run())
		require.Len(t, s.batch, 1)
		require.Equal(t, guilty, s.batch[0].Offset)
		require.LessOrEqual(t, transactions, 7)

		// Without dead letters its partition waits, and only that one.
		s.DeadLettered(s.now, false)
		require.Equal(t, Wait, run())
		require.True(t, s.Settled(s.partition[int32(guilty-1)/4]), "a rebalance does not wait for it")
		var want []int64
		for offset := int64(1); offset <= 8; offset++ {
			if (offset-1)/4 != (guilty-1)/4 || offset < guilty {
				want = append(want, offset)
			}
		}
		require.ElementsMatch(t, want, done)
		s.adds(0, 11).adds(1, 15)
		s.after(10)

		// It is tried again, alone; with dead letters it goes on.
		transactions = 0
		s.after(int(lastRefusal / time.Millisecond))
		require.Equal(t, DeadLetter, run())
		require.Equal(t, guilty, s.batch[0].Offset)
		s.batch[0].Dead = true
		s.DeadLettered(s.now, true)
		s.after(1000)
		require.Equal(t, Wait, run())
		require.Len(t, done, 10)
		require.True(t, s.partition[0].waiting == 0 && s.partition[1].waiting == 0)
	}
}
