package pgtx

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/boundary"
	"github.com/millrace-go/millrace/internal/pgunit"
)

// pipeline holds the pending entries as statements of one round trip.
type pipeline struct {
	batch   *pgx.Batch
	explain []func(error) error // for each statement, makes the error that the caller gets
	first   []int               // for each statement, the index of its first entry
}

// compose turns the pending entries into statements: first the queued ones, then those of collectors that take locks, then
// the others.
func (t *transaction) compose(ctx context.Context) (pipeline, error) {
	p := pipeline{batch: &pgx.Batch{}}
	t.mu.Lock()
	type collected struct {
		by    pgunit.Collector
		items []any
		first int
	}
	var all []collected
	for at, e := range t.pending {
		switch {
		case e.sent != notSent:
		case e.collector == nil:
			p.batch.Queue(e.sql, e.args...)
			p.explain = append(p.explain, func(err error) error { return fmt.Errorf("queued statement: %w", err) })
			p.first = append(p.first, at)
		default:
			i := slices.IndexFunc(all, func(c collected) bool { return c.by == e.collector }) // one or two elements: no map
			if i < 0 {
				i, all = len(all), append(all, collected{by: e.collector, first: at})
			}
			all[i].items = append(all[i].items, e.item)
		}
	}
	t.mu.Unlock()
	ctx = context.WithValue(ctx, boundary.Postgres{}, &unit{tx: &tx{t: t, managed: true}, work: t})
	for _, locks := range []bool{true, false} {
		for _, c := range all {
			if c.by.Locks() != locks {
				continue
			}
			if err := c.by.Flush(ctx, c.items, p.batch); err != nil {
				return p, err
			}
			for len(p.explain) < p.batch.Len() {
				p.explain = append(p.explain, c.by.Explain)
				p.first = append(p.first, c.first)
			}
		}
	}
	return p, nil
}

// read reads the results of all statements, and closes them.
func (p pipeline) read(results pgx.BatchResults) failure {
	f := p.take(results)
	if err := results.Close(); f.err == nil && err != nil {
		f.err = plain(err)
	}
	return f
}

// failure is the first error of a pipeline.
type failure struct {
	err      error
	before   bool // a statement of the pipeline failed, not COMMIT after it
	entry    int  // the index of the statement's first entry
	executed bool // false when pgx refused a statement before it sent any
}

// take reads the results of all statements and explains the first error.
func (p pipeline) take(results pgx.BatchResults) failure {
	for i := range p.explain {
		_, err := results.Exec()
		if err == nil {
			continue
		}
		// pgx prepares all statements before it reads the first result.
		var pre pgx.ErrPreprocessingBatch
		if !errors.As(err, &pre) {
			return failure{err: p.explain[i](err), before: true, entry: p.first[i], executed: true}
		}
		for j, q := range p.batch.QueuedQueries[:len(p.explain)] {
			if q.SQL == pre.SQL() {
				i = j
				break
			}
		}
		return failure{err: p.explain[i](pre.Unwrap()), before: true, entry: p.first[i]}
	}
	return failure{executed: true}
}
