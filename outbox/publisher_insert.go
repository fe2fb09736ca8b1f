package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/pgtx"
)

// inserter writes the events of one schema. One statement writes all events that a transaction has collected for a schema, even if
// they come from several publishers.
type inserter struct{ schema, insert, insertOne, insertDelayed, cancelDelayed string }

func newInserter(schema string) inserter {
	query := func(name string) string { return store.Query(name, schema) }
	return inserter{schema: schema, insert: query("insert"), insertOne: query("insert_one"), insertDelayed: query("insert_delayed"), cancelDelayed: query("delayed_cancel")}
}

// statement returns the statement that inserts these events.
func (s inserter) statement(c columns) string {
	switch {
	case c.delayed:
		return s.insertDelayed
	case len(c.hash) == 1:
		return s.insertOne
	}
	return s.insert
}

// write adds the events to the transaction of the context: at its commit if the transaction collects statements, else immediately.
func (s inserter) write(ctx context.Context, o owner, events []stored) error {
	collected, err := pgunit.Collect(ctx, s, events)
	if err != nil {
		return err
	}
	if collected {
		for i := range events { // the caller may change the message after Publish has returned
			events[i].payload = bytes.Clone(events[i].payload)
		}
		return nil
	}
	for part := range portions(events) {
		c := columnsOf(part)
		if o.sql != nil {
			_, err = o.sql.ExecContext(ctx, s.statement(c), c.literals()...)
		} else {
			_, err = o.pgx.Exec(ctx, s.statement(c), c.args()...)
		}
		if err != nil {
			return s.hint(err)
		}
	}
	s.wakeAfterCommit(ctx, events)
	return nil
}

// maxStatementBytes keeps a statement far below PostgreSQL's limit of 1 GB, even when bytes are sent as hexadecimal.
const maxStatementBytes = 64 << 20

// portions splits the events into one part per statement. Only very large transactions need more than one.
func portions(events []stored) iter.Seq[[]stored] {
	return func(yield func([]stored) bool) {
		first, size := 0, 0
		for i, e := range events {
			n := len(e.payload) + len(e.headers)
			if size += n; size > maxStatementBytes && i > first {
				if !yield(events[first:i]) {
					return
				}
				first, size = i, n
			}
		}
		yield(events[first:])
	}
}

// Flush implements pgunit.Collector.
func (s inserter) Flush(ctx context.Context, items []any, b *pgx.Batch) error {
	var events []stored
	for _, item := range items {
		events = append(events, item.([]stored)...)
	}
	for part := range portions(events) {
		c := columnsOf(part)
		b.Queue(s.statement(c), c.args()...)
	}
	s.wakeAfterCommit(ctx, events)
	return nil
}

// Explain implements pgunit.Collector.
func (s inserter) Explain(err error) error {
	return fmt.Errorf("insert the events into the outbox: %w", s.hint(err))
}

// Locks implements pgunit.Collector.
func (s inserter) Locks() bool { return false }

func (s inserter) wakeAfterCommit(ctx context.Context, events []stored) {
	var hashes []int64
	for _, e := range events {
		if e.delay == 0 {
			hashes = append(hashes, e.hash)
		}
	}
	if len(hashes) > 0 {
		pgtx.AfterCommit(ctx, func() { wake.Tell(s.schema, hashes...) })
	}
}

// hint says what to do when tables or functions of the outbox are missing.
func (s inserter) hint(err error) error {
	var state interface{ SQLState() string } // implemented by the errors of pgx and of other drivers
	if errors.As(err, &state) {
		switch state.SQLState() {
		case "42P01", "3F000", "42883": // no table, no schema, no function
			return fmt.Errorf("the outbox's tables are missing in schema %q, or older than this program: run \"millrace migrate up\" or outbox.Migrate first: %w", s.schema, err)
		}
	}
	return err
}
