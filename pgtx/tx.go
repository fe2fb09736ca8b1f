package pgtx

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// tx is the pgx.Tx that Run passes to its function. It sends BEGIN with the first statement. Savepoints have this type too.
type tx struct {
	t       *transaction
	name    string // the savepoint's name; "" for the whole transaction
	made    bool   // the server has executed SAVEPOINT
	mark    int    // the number of entries in transaction.pending when Begin was called
	after   int    // the number of functions in transaction.after when Begin was called
	blamed  bool   // an entry from before the savepoint was sent inside it, and failed
	healed  bool   // a statement failed in an inner savepoint, which was rolled back
	leaves  string // the first statement in the savepoint that leaves something behind
	managed bool   // only Run may end it
	closed  bool
}

// before is called before the statements are sent. It refuses statements that end the transaction. If a statement may make or
// undo a savepoint, it sends the pending entries first, because the transaction could not notice that they were undone.
func (x *tx) before(ctx context.Context, statements ...string) error {
	if x.closed {
		return pgx.ErrTxClosed
	}
	if err := x.t.usable(); err != nil {
		return err
	}
	if slices.ContainsFunc(statements, ends) {
		return ErrManaged
	}
	x.t.note(statements...)
	if slices.ContainsFunc(statements, mentionsSavepoint) {
		return x.t.goDirect(ctx)
	}
	return nil
}

func (x *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := x.before(ctx, sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	t := x.t
	// A single word may be the name of a prepared statement, so it must not be joined with other texts.
	st := statement{sql: sql, args: args, text: len(args) == 0 && strings.ContainsAny(sql, " \t\r\n")}
	if t.opens() && isOne(sql) { // the opening has arguments, so it can travel only in a batch
		st.text = false
	}
	lead, unknown, err := t.lead(ctx, st)
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case len(lead) == 0:
		tag, err := t.q.Exec(ctx, sql, args...)
		if unknown && err == nil {
			t.learn([]statement{st})
		}
		return tag, err
	case st.text:
		return t.execText(ctx, lead, sql)
	}
	r := t.sendAfter(ctx, lead, batchOf(sql, args))
	tag, err := r.Exec()
	return tag, r.closeAfter(err)
}

func (x *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := x.before(ctx, sql); err != nil {
		return failedRows(err), err
	}
	t, st := x.t, statement{sql: sql, args: args}
	lead, unknown, err := t.lead(ctx, st)
	switch {
	case err != nil:
		return failedRows(err), err
	case len(lead) == 0:
		rows, err := t.q.Query(ctx, sql, args...)
		if unknown && err == nil { // the server has prepared it, even if it fails later
			t.learn([]statement{st})
		}
		return rows, err
	}
	return t.sendAfter(ctx, lead, batchOf(sql, args)).rows()
}

func (x *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := x.Query(ctx, sql, args...) // rows.Err returns the error
	return row{rows}
}

func (x *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if pgx.FailedBatchResults(b, nil).Tx() != nil {
		return pgx.FailedBatchResults(b, errors.New("Batch.BeginTx cannot be used within a transaction"))
	}
	statements := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		statements[i] = q.SQL
	}
	if err := x.before(ctx, statements...); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return x.t.send(ctx, b)
}

func (x *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := x.before(ctx); err != nil {
		return 0, err
	}
	if err := x.t.tell(ctx); err != nil {
		return 0, err
	}
	return x.t.q.CopyFrom(ctx, table, columns, rows)
}

func (x *tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := x.before(ctx, sql); err != nil {
		return nil, err
	}
	if err := x.t.tell(ctx); err != nil {
		return nil, err
	}
	return x.t.q.Prepare(ctx, name, sql)
}

// Conn returns the connection. Before that it sends BEGIN and the pending entries, because the transaction cannot see
// savepoints that the caller makes and rolls back on the connection. If BEGIN fails, Conn leaves the connection in a failed
// transaction, so that the caller's statements cannot commit by themselves.
func (x *tx) Conn() *pgx.Conn {
	t := x.t
	if !x.closed && t.usable() == nil {
		t.watch()
		t.note(connGiven)
		if err := errors.Join(t.tell(t.ctx), t.goDirect(t.ctx)); err != nil && t.lost == nil {
			t.lost = err // Conn cannot return it, so commit does
		}
		t.direct = 0 // no rollback of a savepoint resets it
	}
	if !t.ended && !t.begun && status(t.conn) == 'I' {
		_, _ = t.conn.Exec(t.ctx, t.begin+"; rollback to savepoint refused") // fails: there is no such savepoint
		if status(t.conn) != 'E' {
			_ = t.conn.Close(t.ctx)
		}
		t.begun = true // so that rollback sends ROLLBACK
	}
	return t.conn
}

func (x *tx) LargeObjects() pgx.LargeObjects {
	t := x.t
	if t.foreign != nil {
		return t.foreign.LargeObjects()
	}
	// Only a transaction of pgx has large objects, and only BeginTx makes such a transaction.
	if t.opens() && !x.closed && t.usable() == nil {
		_ = t.tell(t.ctx) // the next condition checks its result
	}
	if !t.opens() && !x.closed && t.usable() == nil && status(t.conn) != 'E' { // BeginTx closes the connection when it fails
		begin := "select"
		if lead := t.owes(); len(lead) > 0 {
			begin = textOf(lead)
		}
		p, err := t.conn.BeginTx(t.ctx, pgx.TxOptions{BeginQuery: begin})
		t.settleText(err)
		if err == nil {
			return p.LargeObjects()
		}
	}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx().LargeObjects() // every method returns ErrTxClosed
}

// mentionsSavepoint reports whether the statement may make a savepoint, or roll back to one. It only looks for the word,
// because a false positive costs no more than a round trip.
func mentionsSavepoint(sql string) bool { return mentions(sql, "savepoint", "vV") }

// mentions reports whether sql contains the word, in any case. It runs for each statement, so for speed it searches for a rare
// letter of the word. letters has both cases of that letter; the first is the one in word.
func mentions(sql, word, letters string) bool {
	before := strings.IndexByte(word, letters[0])
	for _, letter := range []byte(letters) {
		for at := strings.IndexByte(sql, letter); at >= 0; {
			if from := at - before; from >= 0 && from+len(word) <= len(sql) && strings.EqualFold(sql[from:from+len(word)], word) {
				return true
			}
			next := strings.IndexByte(sql[at+1:], letter)
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	return false
}
