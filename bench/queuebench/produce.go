package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

const (
	// keys is how many keys the jobs have, as in the other benchmarks.
	keys = 1000
	// framing is about what a job has beside its padding.
	framing = 60
	// insertTimeout is long for a transaction, and short of the time that the harness gives after SIGTERM, less drainFor and stopFor.
	insertTimeout = time.Second
)

// credit is how many jobs may be inserted by now: by the time that has really passed, so that a slow transaction is made up for.
type credit struct {
	at   time.Time
	jobs float64
}

func (c *credit) grow(now time.Time, perSecond float64) {
	c.jobs += perSecond * now.Sub(c.at).Seconds()
	c.at = now
}

func (c *credit) take(most int) int {
	n := min(int(c.jobs), most)
	c.jobs -= float64(n)
	return n
}

// produce inserts jobs until ctx ends. A transaction that fails is logged, and its jobs are not tried again.
func (a *adapter) produce(ctx context.Context) {
	padding := strings.Repeat("x", max(0, a.payload-framing))
	ticks := time.NewTicker(a.every)
	defer ticks.Stop()
	for due := (credit{at: time.Now()}); ctx.Err() == nil; {
		var n int
		if a.fixed {
			rate := a.currentRate()
			a.target.Store(int64(rate))
			due.grow(time.Now(), rate)
			n = due.take(a.batch)
		} else {
			n = int(min(a.targetDepth-a.depth.Load(), int64(a.batch)))
		}
		if n > 0 {
			if err := a.insert(ctx, n, padding); err != nil {
				a.log.Error("insert jobs", "error", err)
			} else {
				a.enqueued.Add(int64(n))
			}
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}

// insert commits n jobs in one transaction, and a row of the "business", which says how many: at the end of a run it tells what
// should have been handled.
func (a *adapter) insert(ctx context.Context, n int, padding string) error {
	// The last transaction is not cut off: what it left would be in doubt, and so not drained.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), insertTimeout)
	defer cancel()
	return a.service.Tx(ctx, func(ctx context.Context, _ pgx.Tx) error {
		if err := pgtx.Queue(ctx, `insert into `+insertedTable+` (jobs) values ($1)`, n); err != nil {
			return err
		}
		now := time.Now().UnixNano()
		for range n {
			a.seq++
			if err := a.jobs.Publish(ctx, strconv.FormatInt(a.seq%keys, 10), job{Seq: a.seq, Inserted: now, Padding: padding}); err != nil {
				return err
			}
		}
		return nil
	})
}
