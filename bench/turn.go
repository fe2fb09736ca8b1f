package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/outbox"
)

// turn lets as many workers as there are connections commit transactions until the time is over, and returns the rate.
// It checks that the database has as many business rows and events more as there were commits; drained are events that
// relays have taken meanwhile.
func turn(ctx context.Context, pool *pgxpool.Pool, p producer, schema string, lasts time.Duration, drained func() int) (float64, error) {
	stock := newBacklog(256) // for the payloads; each event gets an ID of its own
	before, err := committed(ctx, pool, p, schema)
	if err != nil {
		return 0, err
	}
	drainedBefore := drained()
	commits, rate, err := repeat(ctx, producers, lasts, func(ctx context.Context, n int) error {
		e := stock[n%len(stock)]
		e.id = outbox.NewID()
		return p.commit(ctx, n, e)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name(), err)
	}

	deadline := time.Now().Add(recordTimeout)
	for {
		after, err := committed(ctx, pool, p, schema)
		if err != nil {
			return 0, err
		}
		rows, events := after.rows-before.rows, after.events-before.events+drained()-drainedBefore
		want := commits
		if p.table(schema) == "" {
			events = want
		}
		// A relay deletes what it has published a little later, so that for a moment it counts twice; and what is in the log does not count
		// until a relay has landed it.
		if rows == want && events == want && (after.events == 0 || drained() == drainedBefore) {
			return rate, nil
		}
		if rows != want || time.Now().After(deadline) {
			return 0, fmt.Errorf("%s: %d commits made %d business rows and %d events", p.name(), want, rows, events)
		}
		time.Sleep(time.Millisecond)
	}
}

// repeat lets workers commit until the time is over. It returns how often they did, and how often a second.
func repeat(ctx context.Context, workers int, lasts time.Duration, commit func(ctx context.Context, n int) error) (int, float64, error) {
	var commits atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	ends := began.Add(lasts)
	for worker := range workers {
		group.Go(func() error {
			done := 0
			for n := worker; time.Now().Before(ends); n += workers {
				if err := commit(ctx, n); err != nil {
					return err
				}
				done++
			}
			commits.Add(int64(done))
			return nil
		})
	}
	err := group.Wait()
	return int(commits.Load()), float64(commits.Load()) / time.Since(began).Seconds(), err
}

type counts struct{ rows, events int }

func committed(ctx context.Context, pool *pgxpool.Pool, p producer, schema string) (c counts, err error) {
	if err := pool.QueryRow(ctx, `select count(*) from `+orders{schema}.table()).Scan(&c.rows); err != nil {
		return c, err
	}
	if p.table(schema) == "" {
		return c, nil
	}
	return c, pool.QueryRow(ctx, `select count(*) from `+p.table(schema)).Scan(&c.events)
}
