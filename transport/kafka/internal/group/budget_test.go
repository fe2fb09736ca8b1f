package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// reader is a partition with a backlog.
type reader struct {
	left, held int
	stuck      bool // its handlers end nothing
	woken      bool
	reads      bool
	again      time.Time
}

func (r *reader) Wake() { r.woken = true }

func (r *reader) flow(stop bool) { r.reads = !stop }

// Whatever partitions hold and handlers do, what is held stays within the limit and one fetch for each partition that was reading, and
// everything is read that no handler withholds.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBudget(16 << 20)
		now := time.Unix(0, 0)
		readers := make([]*reader, rapid.IntRange(1, 60).Draw(t, "partitions"))
		stuck := 0
		for i := range readers {
			readers[i] = &reader{left: rapid.IntRange(0, 8<<20).Draw(t, "backlog"), stuck: rapid.IntRange(0, 3).Draw(t, "stuck") == 0, woken: true}
			if readers[i].stuck {
				stuck++
			}
			b.Enter(readers[i], now)
		}
		finished := func() bool {
			for _, r := range readers {
				if !r.stuck && r.left+r.held > 0 {
					return false
				}
			}
			return true
		}
		for rounds := 0; !finished(); rounds++ {
			require.Less(t, rounds, 20_000, "a partition starves")
			now = now.Add(grantTime / 8)
			for _, r := range readers {
				if r.woken || !r.again.IsZero() && !r.again.After(now) {
					r.woken = false
					r.reads, r.again = b.Reads(r, r.held, now)
				}
			}
			room := b.request // the brokers' answer, which begins anywhere
			first := rapid.IntRange(0, len(readers)-1).Draw(t, "first")
			for i := range readers {
				if r := readers[(first+i)%len(readers)]; r.reads {
					n := min(b.fetch, r.left, room)
					r.left, r.held, room, r.woken = r.left-n, r.held+n, room-n, r.woken || n > 0
				}
			}
			all := 0
			for _, r := range readers {
				all += r.held
			}
			require.LessOrEqual(t, all, b.limit+b.request+(stuck+1)*b.fetch)
			if rapid.IntRange(0, 8).Draw(t, "pause") > 0 {
				continue
			}
			for _, r := range readers {
				if !r.stuck && r.held > 0 {
					r.held, r.woken = max(0, r.held-rapid.IntRange(0, 1<<20).Draw(t, "done")), true
				}
			}
		}
		for _, r := range readers {
			b.Leave(r, now)
		}
		require.Zero(t, b.held)
		require.Empty(t, b.queue)
	})
}

func TestBudgetAdmitsInTurn(t *testing.T) {
	now := time.Unix(0, 0)
	b := &Budget{limit: 100, fetch: 10, accounts: map[reading]*account{}}
	var p [4]reader
	asks := func(i, bytes int) bool {
		reads, _ := b.Reads(&p[i], bytes, now)
		return reads
	}
	for i := range p {
		b.Enter(&p[i], now)
	}
	require.True(t, asks(0, 14))
	require.False(t, asks(0, 15), "a fetch would exceed its quarter")
	require.False(t, asks(1, 90), "all together hold too much")
	require.True(t, p[2].woken, "it has to stop")
	require.False(t, asks(2, 0))
	require.False(t, asks(3, 0))
	p = [4]reader{}
	require.False(t, asks(1, 70))
	require.True(t, p[2].woken, "it waits longest")
	require.False(t, p[3].woken)
	require.True(t, asks(2, 0))
	now = now.Add(grantTime)
	require.True(t, asks(2, 0))
	require.True(t, p[3].woken, "the other one had nothing to read")
	require.True(t, asks(3, 10))
	require.False(t, asks(3, 20))
	require.False(t, asks(2, 0), "all hold 105")

	p[2].woken = false
	now = now.Add(stuckAfter - 1)
	require.False(t, asks(1, 70))
	require.False(t, p[2].woken)
	now = now.Add(1)
	require.False(t, asks(1, 70), "nothing was done for long")
	require.True(t, p[2].woken)
}
