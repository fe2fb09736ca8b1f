package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// depot keeps filled tables, each contestant's as the contestant wrote it, so that a run costs a copy inside the server
// and not another writing of the same events. The copy keeps the order of the rows and the state of the sequences.
type depot struct {
	prefix string // of the schemas, which are its own
	kept   []keptTable
}

type keptTable struct {
	contestant string
	schema     string
	first      string // the ID of its first event
	rows       int
}

// keep returns a function that writes the events, into a schema that is dropped with the depot's. The functions of
// several calls may run concurrently, and have to have returned before the first copy.
func (d *depot) keep(who drainer, events []event) (write func(context.Context, *pgxpool.Pool) error) {
	schema := fmt.Sprintf("%s_%d", d.prefix, len(d.kept))
	d.kept = append(d.kept, keptTable{layout(who), schema, events[0].id, len(events)})
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := who.create(ctx, pool, schema); err != nil {
			return fmt.Errorf("%s: create tables: %w", who.name(), err)
		}
		if err := writeAll(ctx, pool, who, schema, events); err != nil {
			return fmt.Errorf("%s: write the backlog: %w", who.name(), err)
		}
		return nil
	}
}

// layout tells whose tables the contestant has.
func layout(d drainer) string {
	if s, ok := d.(singleSelect); ok {
		return s.millrace.name()
	}
	return d.name()
}

// drop removes all that it keeps, also after Ctrl-C.
func (d *depot) drop(ctx context.Context, pool *pgxpool.Pool) (err error) {
	for _, k := range d.kept {
		err = errors.Join(err, dropSchema(ctx, pool, k.schema))
	}
	return err
}

// find returns where the events are kept.
func (d *depot) find(who drainer, events []event) (keptTable, bool) {
	i := slices.IndexFunc(d.kept, func(k keptTable) bool {
		return k.contestant == layout(who) && k.first == events[0].id && k.rows == len(events)
	})
	if i < 0 {
		return keptTable{}, false
	}
	return d.kept[i], true
}

// copyTo fills the contestant's empty table in the schema. It reports false when these events are not kept.
func (d *depot) copyTo(ctx context.Context, pool *pgxpool.Pool, who drainer, schema string, events []event) (bool, error) {
	if d == nil || len(events) == 0 {
		return false, nil
	}
	from, ok := d.find(who, events)
	if !ok {
		return false, nil
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Otherwise a scan of a large table may begin in its middle.
		if _, err := tx.Exec(ctx, `set local synchronize_seqscans = off`); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `insert into `+who.table(schema)+` select * from `+who.table(from.schema))
		if err != nil {
			return err
		}
		if tag.RowsAffected() != int64(len(events)) {
			return fmt.Errorf("copied %d rows of %d", tag.RowsAffected(), len(events))
		}
		_, err = tx.Exec(ctx, `select setval(format('%I.%I', $2::text, sequencename), last_value)
			from pg_sequences where schemaname = $1 and last_value is not null`, from.schema, schema)
		return err
	})
	return true, err
}
