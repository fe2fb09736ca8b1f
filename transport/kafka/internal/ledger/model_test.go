package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLedgerModel: whatever the brokers answer, and whoever has the partitions, each message is committed once, in the
// order of its partition, and nothing is stuck.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := &Ledger{limits: Limits{Units: 4, Bytes: 1000, Delay: 100, Idle: 10}}
		now := time.Unix(0, 0)
		places := []Place{{Topic: "a"}, {Topic: "b"}} // a member of a pattern has partitions of the same number
		of := func(at Place) int { return slices.Index(places, at) }
		partitions := []*Partition{{Place: places[0]}, {Place: places[1]}}
		next := []int64{0, 0}      // what is added next
		committed := []int64{0, 0} // the group's offsets
		owned := []bool{true, true}
		notes := []string{"", ""}          // beside them
		asked := map[*Partition][]string{} // marks
		marks := 0
		written := map[string]bool{} // of those
		dead := map[int64]bool{}
		poison := func(u *Unit) bool { return !u.Mark && of(u.Partition.Place) == 1 && u.Offset%7 == 3 }
		add := func(p int) {
			l.Add(now, &Unit{Partition: partitions[p], Offset: next[p], Bytes: rapid.IntRange(1, 600).Draw(r, "bytes")})
			next[p]++
		}
		reclaim := func(p int) { // as a later session does: from the group's offsets
			l.Drop(partitions[p])
			partitions[p] = &Partition{Place: places[p]}
			next[p], owned[p] = committed[p], true
		}
		commit := func() {
			for at, offset := range FirstOffsets(l.batch) {
				require.Equal(r, committed[of(at)], offset, "a gap, or twice")
			}
			for _, u := range l.batch {
				p := of(u.Partition.Place)
				if notes[p] = u.Note; u.Mark {
					written[u.Note] = true
					require.Equal(r, committed[p], u.Offset+1)
					continue
				}
				require.Equal(r, committed[p], u.Offset)
				require.False(r, poison(u) && !u.Dead)
				committed[p]++
			}
		}
		step := func(kind int) Step { // kind: how a transaction ends
			step, _ := l.Next(now)
			switch step {
			case Commit:
				foreign, refused := false, false
				for _, u := range l.batch {
					require.Same(r, partitions[of(u.Partition.Place)], u.Partition, "of an earlier assignment")
					foreign = foreign || !owned[of(u.Partition.Place)]
					refused = refused || poison(u) && !u.Dead
				}
				switch {
				case kind == 3:
					l.Withheld(now, []*Partition{l.batch[len(l.batch)-1].Partition})
				case foreign && kind == 1:
					l.Ended(now, Lost)
				case foreign:
					l.Ended(now, Failed)
				case refused:
					l.Ended(now, Refused)
				case kind == 0:
					commit()
					l.Ended(now, Committed)
				case kind == 1:
					commit() // and the answer is lost
					l.Ended(now, Failed)
				default:
					l.Ended(now, Failed)
				}
			case Fence:
				if kind == 2 {
					l.Fenced(now, errors.New("no coordinator"))
				} else {
					l.Fenced(now, nil)
				}
			case Resolve:
				if kind == 2 {
					l.Resolved(now, Unknown)
					break
				}
				firsts, nexts, found := FirstOffsets(l.batch), NextOffsets(l.batch), map[Place]Position{}
				for at := range firsts {
					found[at] = Position{Offset: committed[of(at)], Note: notes[of(at)]}
				}
				l.Resolved(now, VerdictOf(firsts, nexts, found))
			case DeadLetter:
				u := l.batch[0]
				require.True(r, poison(u))
				ok := dead[u.Offset]
				dead[u.Offset] = true // the next time
				u.Dead = u.Dead || ok
				l.DeadLettered(now, ok)
			case Wait, Stop:
			}
			for p, c := range partitions {
				if c.gone {
					reclaim(p)
				}
			}
			return step
		}
		partition := func(r *rapid.T) int { return rapid.IntRange(0, 1).Draw(r, "partition") }
		r.Repeat(map[string]func(*rapid.T){
			"add": func(r *rapid.T) {
				if p := partition(r); !l.Full(partitions[p]) {
					add(p)
				}
			},
			"mark": func(r *rapid.T) {
				p := partition(r)
				note := fmt.Sprint("mark ", marks)
				marks++
				asked[partitions[p]] = append(asked[partitions[p]], note)
				l.Add(now, &Unit{Partition: partitions[p], Offset: next[p] - 1, Mark: true, Note: note})
			},
			"step": func(r *rapid.T) { step(rapid.IntRange(0, 3).Draw(r, "kind")) },
			"time": func(r *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, int(time.Minute)).Draw(r, "time"))) },
			"taken by another member, which commits some": func(r *rapid.T) {
				p := partition(r)
				if l.phase == ending {
					r.Skip("the model's transactions are instantaneous")
				}
				owned[p] = false
				committed[p] += int64(rapid.IntRange(0, 5).Draw(r, "more"))
				notes[p] = "another member's"
			},
			"given back": func(r *rapid.T) { reclaim(partition(r)) },
			"": func(r *rapid.T) {
				for p, marks := range asked {
					for _, note := range marks[:p.Marked] {
						require.True(r, written[note], note)
					}
				}
			},
		})
		for p := range partitions {
			reclaim(p)
			add(p)
			l.Add(now, &Unit{Partition: partitions[p], Offset: next[p] - 1, Mark: true, Note: "the last"})
		}
		l.Close()
		for range 1000 {
			now = now.Add(2 * time.Minute)
			if step(0) == Stop {
				break
			}
		}
		require.Equal(r, next, committed)
		require.Equal(r, []string{"the last", "the last"}, notes)
		for _, p := range partitions {
			require.Equal(r, 1, p.Marked)
		}
		require.Empty(r, l.queue)
		require.Empty(r, l.batch)
	})
}
