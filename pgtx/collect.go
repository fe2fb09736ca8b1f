package pgtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
)

const notSent = -1

// entry waits for COMMIT: a statement, or an item and its collector.
type entry struct {
	sql  string
	args []any

	collector pgunit.Collector
	item      any

	sent int // how many savepoints were open when it was sent, or notSent
}

// Queue sends a statement together with COMMIT, which costs no round trip of its own. It must be one statement, whose
// result nobody needs; its error makes Run fail, and the transaction is rolled back. Nothing in the transaction sees its
// effect. The arguments must not be changed until Run has returned. A statement that was queued in a nested Run that
// rolls back is not sent.
//
// Below With and WithSQL, and in a transaction whose savepoints are made by hand, the statement is executed at once.
// Without a transaction the error wraps ErrNoTransaction.
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

// queueable refuses what would end the transaction in front of its COMMIT, and what is no statement.
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

// Flush sends what was queued and collected until now, for a statement that must see it. Without a transaction of Run's
// there is nothing to do.
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
	return false, t.flush(ctx) // what a rollback has brought back must come first
}

// goDirect sends what waits, and from then on everything at once.
func (t *transaction) goDirect(ctx context.Context) error {
	if status(t.conn) == 'E' {
		return nil // the statement can only be one that goes back to an earlier savepoint
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	if t.direct < 0 {
		t.direct = len(t.savepoints)
	}
	return nil
}

// flush sends what waits now.
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
		t.pending = nil // nothing can bring it back
	}
	return nil
}
