package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLedgerModel: whatever the brokers answer, and whoever has the partitions, each message is committed once, in the
// order of its partition, and nothing is stuck.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := &ledger{limits: txnLimits{units: 4, bytes: 1000, delay: 100, idle: 10}}
		now := time.Unix(0, 0)
		claims := []*txnClaim{{number: 0}, {number: 1}}
		next := []int64{0, 0}      // what is added next
		committed := []int64{0, 0} // the group's offsets
		owned := []bool{true, true}
		dead := map[int64]bool{}
		poison := func(u *txnUnit) bool { return u.claim.number == 1 && u.offset%7 == 3 }
		add := func(p int) {
			l.add(now, &txnUnit{claim: claims[p], offset: next[p], bytes: rapid.IntRange(1, 600).Draw(r, "bytes")})
			next[p]++
		}
		reclaim := func(p int) { // as a later session does: from the group's offsets
			l.drop(claims[p])
			claims[p] = &txnClaim{number: int32(p)}
			next[p], owned[p] = committed[p], true
		}
		first := func() map[int]int64 {
			first := map[int]int64{}
			for _, u := range l.batch {
				p := int(u.claim.number)
				if _, ok := first[p]; !ok {
					first[p] = u.offset
				}
			}
			return first
		}
		commit := func() {
			for p, offset := range first() {
				require.Equal(r, committed[p], offset, "a gap, or twice")
			}
			for _, u := range l.batch {
				p := u.claim.number
				require.Equal(r, committed[p], u.offset)
				require.False(r, poison(u) && !u.dead)
				committed[p]++
			}
		}
		step := func(kind int) txnStep { // kind: how a transaction ends
			step, _ := l.next(now)
			switch step {
			case txnCommit:
				foreign, refused := false, false
				for _, u := range l.batch {
					require.Same(r, claims[u.claim.number], u.claim, "of an earlier claim")
					foreign = foreign || !owned[u.claim.number]
					refused = refused || poison(u) && !u.dead
				}
				switch {
				case foreign && kind == 1:
					l.ended(now, txnLost)
				case foreign:
					l.ended(now, txnFailed)
				case refused:
					l.ended(now, txnRefused)
				case kind == 0:
					commit()
					l.ended(now, txnCommitted)
				case kind == 1:
					commit() // and the answer is lost
					l.ended(now, txnFailed)
				default:
					l.ended(now, txnFailed)
				}
			case txnFence:
				if kind == 2 {
					l.fenced(now, errors.New("no coordinator"))
				} else {
					l.fenced(now, nil)
				}
			case txnResolve:
				if kind == 2 {
					l.resolved(now, txnUnknown)
					break
				}
				firsts, nexts, found := map[int32]int64{}, nextOffsets(l.batch), map[int32]int64{}
				for p, offset := range first() {
					firsts[int32(p)], found[int32(p)] = offset, committed[p]
				}
				l.resolved(now, verdictOf(firsts, nexts, found))
			case txnBury:
				u := l.batch[0]
				require.True(r, poison(u))
				ok := dead[u.offset]
				dead[u.offset] = true // the next time
				u.dead = u.dead || ok
				l.buried(now, ok)
			case txnWait, txnStop:
			}
			for p, c := range claims {
				if c.gone {
					reclaim(p)
				}
			}
			return step
		}
		partition := func(r *rapid.T) int { return rapid.IntRange(0, 1).Draw(r, "partition") }
		r.Repeat(map[string]func(*rapid.T){
			"add": func(r *rapid.T) {
				if p := partition(r); !l.full(claims[p]) {
					add(p)
				}
			},
			"step": func(r *rapid.T) { step(rapid.IntRange(0, 2).Draw(r, "kind")) },
			"time": func(r *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, int(time.Minute)).Draw(r, "time"))) },
			"taken by another member, which commits some": func(r *rapid.T) {
				p := partition(r)
				if l.phase == txnEnding {
					r.Skip("the model's transactions are instantaneous")
				}
				owned[p] = false
				committed[p] += int64(rapid.IntRange(0, 5).Draw(r, "more"))
			},
			"given back": func(r *rapid.T) { reclaim(partition(r)) },
			"":           func(r *rapid.T) {},
		})
		for p := range claims {
			reclaim(p)
			add(p)
		}
		l.closing = true
		for range 1000 {
			now = now.Add(2 * time.Minute)
			if step(0) == txnStop {
				break
			}
		}
		require.Equal(r, next, committed)
		require.Empty(r, l.queue)
		require.Empty(r, l.batch)
	})
}
