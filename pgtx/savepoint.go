package pgtx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Begin makes a savepoint, with the first statement that needs it. What is queued and collected until its end goes with
// it.
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
	// By its depth: few names are few statements to prepare. Of two with one name the server takes the later.
	sp.name = "millrace_" + strconv.Itoa(len(t.savepoints)+1)
	sp.mark, sp.after = len(t.pending), len(t.after)
	t.savepoints = append(t.savepoints, sp)
	t.mu.Unlock()
	if t.direct >= 0 { // it must be in its place among those that nobody sees
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

// keep releases the savepoint, with the next statement. When keep fails the savepoint can still be undone.
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
		t.owed = "" // it was inside
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.direct < 0 && x.made {
		t.owed = x.name // which releases those inside it too
	}
	depth := t.closeFrom(x) - 1
	for _, e := range t.pending {
		e.sent = min(e.sent, depth)
	}
	t.direct, t.marked = min(t.direct, depth), min(t.marked, depth)
	return nil
}

// undo rolls back to the savepoint, and forgets what was queued and collected since. What was collected before and sent
// since is gone from the server, and waits again.
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
		remark := t.marked > slices.Index(t.savepoints, x) // who has the connection has it still
		if remark {
			sql += "; " + setMark
		}
		if _, err := t.q.Exec(ctx, sql); err != nil {
			return err
		}
		t.owed = "" // it was inside
		if remark {
			t.marked = slices.Index(t.savepoints, x)
		}
	case broken:
		return failed() // see lead: there is no savepoint to go back to
	}
	t.undone(x)
	if broken {
		t.heal()
	}
	if t.direct >= 0 {
		return t.flush(ctx) // savepoints may be made that nobody sees: what has come back cannot wait
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
		t.direct = -1 // savepoints that were made since are gone too
	}
}

// heal notes, for the transaction and the open savepoints, that a statement has failed in one that was rolled back.
func (t *transaction) heal() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.healed = true
	for _, sp := range t.savepoints {
		sp.healed = true
	}
}

// closeFrom closes the savepoint and those inside it, and returns its depth: 1 for an outermost one.
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
