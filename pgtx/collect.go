package pgtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
)

const notSent = -1

// entry is sent with COMMIT: a statement, or an item and its collector.
type entry struct {
	sql  string
	args []any

	collector pgunit.Collector
	item      any

	sent int // the number of savepoints that were open when the entry was sent, or notSent
}

// Queue keeps a statement until COMMIT and sends it in the same round trip. The text must be one statement, and its result
// is dropped. If the statement fails, Run returns its error and rolls the transaction back. Other statements of the
// transaction do not see its effect. The arguments must not be changed until Run has returned. If a nested Run rolls back,
// the statements that were queued in it are not sent.
//
// Queue executes the statement at once below With and WithSQL, and in a transaction that has sent SAVEPOINT as a statement or
// has given its Conn away. If the context carries no transaction, the error wraps ErrNoTransaction.
func Queue(ctx context.Context, sql string, args ...any) error {
	u := unitOf(ctx)
	if u == nil {
		return fmt.Errorf("queue a statement: %w", ErrNoTransaction)
	}
	if err := queueable(sql); err != nil {
		return fmt.Errorf("queue a statement: %w", err)
	}
	var err error
	switch {
	case u.sql != nil:
		_, err = u.sql.ExecContext(ctx, sql, args...)
	case u.work == nil:
		_, err = u.tx.Exec(ctx, sql, args...)
	default:
		if u.closed() {
			return fmt.Errorf("queue a statement: %w", pgx.ErrTxClosed)
		}
		var waits bool
		if waits, err = u.work.add(ctx, &entry{sql: sql, args: args, sent: notSent}); err == nil && !waits {
			_, err = u.tx.Exec(ctx, sql, args...)
		}
	}
	if err != nil {
		return fmt.Errorf("queue a statement: %w", err)
	}
	return nil
}

// queueable refuses statements that would end the transaction before its COMMIT, and a text without a statement.
func queueable(sql string) error {
	empty := true
	for statement := range statements(sql) {
		empty = false
		word, _ := firstWord(statement)
		switch word {
		case "commit", "end", "rollback", "abort", "begin", "start", "prepare", "savepoint", "release":
			return fmt.Errorf("%q is for the transaction's owner: %w", word, ErrManaged)
		}
	}
	if empty {
		return errors.New("the text holds no statement")
	}
	return nil
}

// Collect is pgunit.Collect.
func (u *unit) Collect(ctx context.Context, c pgunit.Collector, item any) (collected bool, err error) {
	if u.work == nil {
		return false, nil
	}
	if u.closed() {
		return false, pgx.ErrTxClosed
	}
	return u.work.add(ctx, &entry{collector: c, item: item, sent: notSent})
}

// Flush sends the queued statements and collected items now, so that the next statement sees their effect. It does nothing
// if the context carries no transaction of Run's.
func Flush(ctx context.Context) error {
	u := unitOf(ctx)
	if u == nil || u.work == nil {
		return nil
	}
	if err := u.work.usable(); err != nil {
		return err
	}
	return u.work.flush(ctx)
}

func (t *transaction) add(ctx context.Context, e *entry) (waits bool, err error) {
	if err := t.usable(); err != nil {
		return false, err
	}
	t.note(e.sql)
	t.mu.Lock()
	if t.direct < 0 {
		t.pending = append(t.pending, e)
		t.mu.Unlock()
		return true, nil
	}
	t.mu.Unlock()
	return false, t.flush(ctx) // entries that a rollback has made pending again must be sent first
}

// goDirect sends the pending entries. From then on the transaction sends every entry at once.
func (t *transaction) goDirect(ctx context.Context) error {
	if status(t.conn) == 'E' {
		return nil // in a failed transaction the server accepts only a rollback to a savepoint
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	if t.direct < 0 {
		t.direct = len(t.savepoints)
	}
	return nil
}

// flush sends the pending entries now.
func (t *transaction) flush(ctx context.Context) error {
	p, err := t.compose(ctx)
	if err != nil || p.batch.Len() == 0 {
		return err
	}
	if f := p.read(t.send(ctx, p.batch)); f.err != nil {
		if f.before {
			t.blame(f.entry, f.err)
		}
		return f.err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.pending {
		if e.sent == notSent {
			e.sent = len(t.savepoints)
		}
	}
	if len(t.savepoints) == 0 {
		t.pending = nil // no rollback to a savepoint can undo them
	}
	return nil
}
