package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ledgerStory tells a ledger what happens, in milliseconds.
type ledgerStory struct {
	*testing.T
	*ledger
	now   time.Time
	claim map[int32]*txnClaim
}

func newLedgerStory(t *testing.T) *ledgerStory {
	l := &ledger{limits: txnLimits{units: 8, bytes: 1000, delay: 100 * time.Millisecond, idle: 10 * time.Millisecond}}
	s := &ledgerStory{T: t, ledger: l, now: time.Unix(0, 0), claim: map[int32]*txnClaim{0: {number: 0}, 1: {number: 1}}}
	require.Equal(t, txnFence, s.step())
	l.fenced(s.now, nil)
	require.Equal(t, txnWait, s.step())
	return s
}

func (s *ledgerStory) step() txnStep {
	step, _ := s.next(s.now)
	return step
}

func (s *ledgerStory) after(ms int) *ledgerStory {
	s.now = s.now.Add(time.Duration(ms) * time.Millisecond)
	return s
}

// adds adds units of 100 bytes, which a transaction may have ten of.
func (s *ledgerStory) adds(claim int32, offsets ...int64) *ledgerStory {
	for _, offset := range offsets {
		s.add(s.now, &txnUnit{claim: s.claim[claim], offset: offset, bytes: 100})
	}
	return s
}

// commits requires that the next transaction is of these offsets.
func (s *ledgerStory) commits(offsets ...int64) {
	s.Helper()
	require.Equal(s, txnCommit, s.step())
	var of []int64
	for _, u := range s.batch {
		of = append(of, u.offset)
	}
	require.Equal(s, offsets, of)
	require.Equal(s, txnWait, s.step(), "one at a time")
}

// fails ends the transaction so, and goes on to what the group tells.
func (s *ledgerStory) fails(outcome txnOutcome, verdict txnVerdict) {
	s.Helper()
	require.Empty(s, s.ended(s.now, outcome))
	require.Equal(s, txnFence, s.step())
	s.fenced(s.now, nil)
	require.Equal(s, txnResolve, s.step())
	s.resolved(s.now, verdict)
}

func TestTransactionIsDue(t *testing.T) {
	t.Parallel()
	t.Run("when nothing more comes", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).after(9).adds(1, 2).after(9)
		step, due := s.next(s.now)
		require.Equal(t, txnWait, step)
		require.Equal(t, time.Millisecond, due.Sub(s.now))
		s.after(1).commits(1, 2)
		s.ended(s.now, txnCommitted)
		require.True(t, s.settled(s.claim[0]))
		require.Equal(t, txnWait, s.step())
	})
	t.Run("after the delay", func(t *testing.T) {
		s := newLedgerStory(t)
		s.limits.units, s.limits.bytes = 100, 1e6
		for i := range int64(14) {
			require.Equal(t, txnWait, s.adds(0, i).after(7).step(), i)
		}
		require.Equal(t, txnWait, s.adds(1, 99).after(1).step())
		require.Equal(t, txnCommit, s.after(1).step())
	})
	t.Run("when it is full", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1, 2, 3, 4, 5, 6, 7)
		require.Equal(t, txnWait, s.step())
		s.adds(1, 8, 9).commits(1, 2, 3, 4, 5, 6, 7, 8)
		s.ended(s.now, txnCommitted)
		require.Equal(t, txnWait, s.step())
		s.after(10).commits(9)
	})
	t.Run("when it is large", func(t *testing.T) {
		s := newLedgerStory(t)
		s.limits.units = 100
		s.adds(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
		s.commits(1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
	})
	t.Run("when one message is too large", func(t *testing.T) {
		s := newLedgerStory(t)
		s.add(s.now, &txnUnit{claim: s.claim[0], offset: 1, bytes: 5000}, &txnUnit{claim: s.claim[0], offset: 2})
		s.commits(1)
		require.True(t, s.full(s.claim[0]))
		s.ended(s.now, txnCommitted)
		require.False(t, s.full(s.claim[0]))
	})
	t.Run("when a partition is given up", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).adds(1, 2)
		s.claim[1].flush = true
		s.commits(1, 2)
	})
	t.Run("at the end", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1)
		s.closing = true
		s.commits(1)
		s.ended(s.now, txnCommitted)
		require.Equal(t, txnStop, s.step())
	})
}

func TestTransactionRecovers(t *testing.T) {
	t.Parallel()
	t.Run("it had committed", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1, 2).after(10).commits(1, 2)
		s.adds(0, 3)
		s.fails(txnFailed, txnDone)
		require.False(t, s.settled(s.claim[0]))
		s.after(10).commits(3)
	})
	t.Run("it had not", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1, 2).after(10).commits(1, 2)
		s.adds(0, 3)
		s.fails(txnFailed, txnReplay)
		s.commits(1, 2, 3)
	})
	t.Run("nobody can tell for a while", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).after(10).commits(1)
		s.ended(s.now, txnFailed)
		s.fenced(s.now, errors.New("no coordinator"))
		require.Equal(t, txnWait, s.step(), "not at once")
		require.Equal(t, txnFence, s.after(1000).step())
		s.fenced(s.now, nil)
		require.Equal(t, txnResolve, s.step())
		s.resolved(s.now, txnUnknown)
		require.Equal(t, txnWait, s.step(), "not at once")
		require.Equal(t, txnResolve, s.after(1000).step())
		s.resolved(s.now, txnReplay)
		s.commits(1)
	})
	t.Run("it is another member's", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).adds(1, 5).after(10).commits(1, 5)
		s.adds(0, 2)
		s.ended(s.now, txnFailed)
		s.fenced(s.now, nil)
		require.Equal(t, txnResolve, s.step())
		require.ElementsMatch(t, []*txnClaim{s.claim[0], s.claim[1]}, s.resolved(s.now, txnForeign))
		s.adds(0, 3)
		require.Equal(t, txnWait, s.after(1000).step(), "nothing of it is committed")
	})
	t.Run("the coordinator says so", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).after(10).commits(1)
		require.Equal(t, []*txnClaim{s.claim[0]}, s.ended(s.now, txnLost))
		require.Equal(t, txnFence, s.step(), "what is open is ended nevertheless")
		s.fenced(s.now, nil)
		require.Equal(t, txnWait, s.step())
	})
	t.Run("a partition was given up meanwhile", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).adds(1, 5).after(10).commits(1, 5)
		s.drop(s.claim[0])
		s.fails(txnFailed, txnReplay)
		s.commits(5)
	})
	t.Run("all were given up meanwhile", func(t *testing.T) {
		s := newLedgerStory(t)
		s.adds(0, 1).after(10).commits(1)
		s.drop(s.claim[0])
		s.closing = true
		s.ended(s.now, txnFailed)
		require.Equal(t, txnFence, s.step())
		s.fenced(s.now, nil)
		require.Equal(t, txnStop, s.step())
	})
}

// TestTransactionFindsWhatIsRefused: all but one of the messages are committed, and of that one's partition those before.
func TestTransactionFindsWhatIsRefused(t *testing.T) {
	t.Parallel()
	for guilty := int64(1); guilty <= 8; guilty++ {
		s := newLedgerStory(t)
		s.adds(0, 1, 2, 3, 4).adds(1, 5, 6, 7, 8)
		var done []int64
		transactions := 0
		run := func() txnStep {
			for {
				switch step := s.step(); step {
				case txnCommit:
					transactions++
					outcome := txnCommitted
					var of []int64
					for _, u := range s.batch {
						of = append(of, u.offset)
						if u.offset == guilty && !u.dead {
							outcome = txnRefused
						}
					}
					if outcome == txnCommitted {
						done = append(done, of...)
					}
					s.ended(s.now, outcome)
				case txnFence:
					s.fenced(s.now, nil)
				case txnResolve:
					s.resolved(s.now, txnReplay)
				case txnBury, txnWait, txnStop:
					return step
				}
			}
		}
		require.Equal(t, txnBury, run())
		require.Len(t, s.batch, 1)
		require.Equal(t, guilty, s.batch[0].offset)
		require.LessOrEqual(t, transactions, 7)

		// Without dead letters its partition waits, and only that one.
		s.buried(s.now, false)
		require.Equal(t, txnWait, run())
		require.True(t, s.settled(s.claim[int32(guilty-1)/4]), "a rebalance does not wait for it")
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
		require.Equal(t, txnBury, run())
		require.Equal(t, guilty, s.batch[0].offset)
		s.batch[0].dead = true
		s.buried(s.now, true)
		s.after(1000)
		require.Equal(t, txnWait, run())
		require.Len(t, done, 10)
		require.True(t, s.claim[0].waiting == 0 && s.claim[1].waiting == 0)
	}
}
