package pgtx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Begin returns a savepoint, which is sent with its first statement. If it is rolled back, the statements that were queued
// and the items that were collected in it are dropped.
func (x *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := x.before(ctx); err != nil {
		return nil, err
	}
	t := x.t
	switch {
	case t.begun && status(t.conn) == 'E':
		return nil, failed()
	case t.conn != nil && t.conn.IsClosed():
		return nil, errors.New("the connection is closed")
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	if err := readToEnd(t.conn); err != nil {
		return nil, err
	}
	sp := &tx{t: t}
	t.mu.Lock()
	// The name is made of the depth: few names mean few statements to prepare. If two savepoints have one name, the server
	// uses the later one.
	sp.name = "millrace_" + strconv.Itoa(len(t.savepoints)+1)
	sp.mark, sp.after = len(t.pending), len(t.after)
	t.savepoints = append(t.savepoints, sp)
	t.mu.Unlock()
	if t.direct >= 0 { // savepoints by hand may follow, so it must be on the server before them
		if err := t.tell(ctx); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.closeFrom(sp)
			return nil, err
		}
	}
	return sp, nil
}

func (x *tx) Commit(ctx context.Context) error {
	if x.managed {
		return ErrManaged
	}
	return x.keep(ctx)
}

func (x *tx) Rollback(ctx context.Context) error {
	if x.managed {
		return ErrManaged
	}
	return x.undo(ctx)
}

// keep ends the savepoint and keeps its work. RELEASE is sent with the next statement. If keep fails, undo can still be called.
func (x *tx) keep(ctx context.Context) error {
	if x.closed {
		return pgx.ErrTxClosed
	}
	t := x.t
	if err := t.usable(); err != nil {
		return err
	}
	if t.begun {
		if err := commitable(t.conn); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("release savepoint: %w", context.Cause(ctx))
	}
	if t.direct >= 0 && x.made {
		if _, err := t.q.Exec(ctx, "release savepoint "+x.name); err != nil {
			return fmt.Errorf("release savepoint: %w", err)
		}
		t.owed = "" // that savepoint was inside x, and was released with it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.direct < 0 && x.made {
		t.owed = x.name // its release also releases the savepoints inside it
	}
	depth := t.closeFrom(x) - 1
	for _, e := range t.pending {
		e.sent = min(e.sent, depth)
	}
	t.direct, t.marked = min(t.direct, depth), min(t.marked, depth)
	return nil
}

// undo rolls back to the savepoint and drops the entries that were added since. Entries that were added before the savepoint
// but sent inside it are undone on the server, so they become pending again.
func (x *tx) undo(ctx context.Context) error {
	if x.closed {
		return pgx.ErrTxClosed
	}
	t := x.t
	if err := t.usable(); err != nil {
		return err
	}
	broken := t.begun && status(t.conn) == 'E'
	switch {
	case x.made:
		sql := "rollback to savepoint " + x.name + "; release savepoint " + x.name
		remark := t.marked > slices.Index(t.savepoints, x) // the rollback removes the mark, but the caller still has the connection
		if remark {
			sql += "; " + setMark
		}
		if _, err := t.q.Exec(ctx, sql); err != nil {
			return err
		}
		t.owed = "" // that savepoint was inside x, and is gone with it
		if remark {
			t.marked = slices.Index(t.savepoints, x)
		}
	case broken:
		return failed() // the savepoint is not on the server: see lead
	}
	t.undone(x)
	if broken {
		t.heal()
	}
	if t.direct >= 0 {
		return t.flush(ctx) // savepoints by hand may follow, so entries that are pending again must be sent now
	}
	return nil
}

func (t *transaction) undone(x *tx) {
	t.mu.Lock()
	defer t.mu.Unlock()
	depth := t.closeFrom(x)
	t.pending = slices.Delete(t.pending, min(x.mark, len(t.pending)), len(t.pending))
	t.after = t.after[:min(x.after, len(t.after))]
	for _, e := range t.pending {
		if e.sent >= depth {
			e.sent = notSent
		}
	}
	if t.direct >= depth {
		t.direct = -1 // the savepoints by hand were made inside x, and are gone too
	}
}

// heal marks the transaction and the open savepoints: a statement has failed in an inner savepoint, which was rolled back.
func (t *transaction) heal() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.healed = true
	for _, sp := range t.savepoints {
		sp.healed = true
	}
}

// closeFrom closes the savepoint and all savepoints inside it. It returns the savepoint's depth: 1 for an outermost one.
func (t *transaction) closeFrom(x *tx) (depth int) {
	i := slices.Index(t.savepoints, x)
	if i < 0 {
		return len(t.savepoints) + 1
	}
	for _, sp := range t.savepoints[i:] {
		sp.closed = true
	}
	t.savepoints = t.savepoints[:i]
	return i + 1
}
