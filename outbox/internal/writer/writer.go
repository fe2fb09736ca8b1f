// Package writer writes a publisher's events in its caller's transaction: as rows of the outbox, or into the write-ahead log.
package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/pgtx"
)

// ErrNoLog is outbox.ErrNoLog.
var ErrNoLog = errors.New("no replication slot keeps the outbox's WAL")

// noSlot is part of the server's error if emit.sql finds no slot.
const noSlot = "no slot keeps the outbox's WAL"

// Writer writes the events of one schema. The events that a transaction has collected for a schema are written together, even if they come
// from several publishers.
type Writer struct {
	Schema string

	toWAL                                           bool
	insert, insertOne, insertDelayed, emit, emitOne string
}

// New returns the Writer of a schema. With toWAL, events that are not delayed go only into the write-ahead log.
func New(schema string, toWAL bool) Writer {
	query := func(name string) string { return store.Query(name, schema) }
	return Writer{
		Schema: schema, toWAL: toWAL, insert: query("insert"), insertOne: query("insert_one"), insertDelayed: query("insert_delayed"),
		emit: query("emit"), emitOne: query("emit_one"),
	}
}

// Write adds the events to the transaction of the context: at its commit if the transaction collects statements, else immediately.
func (w Writer) Write(ctx context.Context, o Owner, events []Event) error {
	collected, err := pgunit.Collect(ctx, w, events)
	if err != nil {
		return err
	}
	if collected {
		for i := range events { // the caller may change the message after Publish has returned
			events[i].Payload = bytes.Clone(events[i].Payload)
		}
		return nil
	}
	for c := range w.calls(events) {
		if err := o.exec(ctx, c); err != nil {
			return w.Hint(err)
		}
	}
	w.wakeAfterCommit(ctx, events)
	return nil
}

// Flush implements pgunit.Collector.
func (w Writer) Flush(ctx context.Context, items []any, b *pgx.Batch) error {
	var events []Event
	for _, item := range items {
		events = append(events, item.([]Event)...)
	}
	for c := range w.calls(events) {
		b.Queue(c.sql, c.args()...)
	}
	w.wakeAfterCommit(ctx, events)
	return nil
}

// Explain implements pgunit.Collector.
func (w Writer) Explain(err error) error {
	if err = w.Hint(err); errors.Is(err, ErrNoLog) {
		return fmt.Errorf("publish to the outbox: %w", err)
	}
	return fmt.Errorf("insert the events into the outbox: %w", err)
}

// Locks implements pgunit.Collector.
func (w Writer) Locks() bool { return false }

// wakeAfterCommit tells relays of rows. Events in the WAL need no wake-up: the slot's stream shows them.
func (w Writer) wakeAfterCommit(ctx context.Context, events []Event) {
	if w.toWAL {
		return
	}
	var hashes []int64
	for _, e := range events {
		if e.Delay == 0 {
			hashes = append(hashes, e.Hash)
		}
	}
	if len(hashes) > 0 {
		pgtx.AfterCommit(ctx, func() { wake.Tell(w.Schema, hashes...) })
	}
}

// Hint says what to do when tables or functions of the outbox are missing, or no slot keeps the WAL.
func (w Writer) Hint(err error) error {
	var state interface{ SQLState() string } // implemented by the errors of pgx and of other drivers
	if errors.As(err, &state) {
		switch code := state.SQLState(); {
		case code == "42P01", code == "3F000", code == "42883": // no table, no schema, no function
			return fmt.Errorf("the outbox's tables are missing in schema %q, or older than this program: run \"millrace migrate up\" or outbox.Migrate first: %w", w.Schema, err)
		case code == "22P02" && strings.Contains(err.Error(), noSlot):
			return fmt.Errorf("%w: start a relay with RelayConfig.Store Log (in YAML outbox.store: log), which creates the slot; if one is running, its error messages say why there is no slot: %w", ErrNoLog, err)
		}
	}
	return err
}
