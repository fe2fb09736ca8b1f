package pgtx

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// tx is what Run's function gets: a pgx.Tx that sends BEGIN with its first statement. Savepoints are of this type too.
type tx struct {
	t       *transaction
	name    string // of the savepoint; "" for the whole transaction
	made    bool   // the server knows the savepoint
	mark    int    // how many entries were pending when the savepoint was made
	after   int    // how many functions waited for the commit then
	blamed  bool   // an entry from before it has failed inside it
	healed  bool   // a statement failed in a savepoint inside it, which was rolled back
	leaves  string // a statement inside it that leaves something behind
	managed bool   // its end belongs to Run
	closed  bool
}

// before readies the transaction for the statements: what could be undone behind its back must be sent before. One that
// ends the transaction is refused.
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
	// What is one word may be the name of a prepared statement.
	st := statement{sql: sql, args: args, text: len(args) == 0 && strings.ContainsAny(sql, " \t\r\n")}
	if t.opens() && isOne(sql) { // the opening has arguments, which a text cannot have
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
		if unknown && err == nil { // it was prepared, whatever comes of it
			t.learn([]statement{st})
		}
		return rows, err
	}
	return t.sendAfter(ctx, lead, batchOf(sql, args)).rows()
}

func (x *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := x.Query(ctx, sql, args...) // the rows have the error
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

// Conn gives the connection away, so the transaction begins, and what was collected is sent: a savepoint that is made
// and rolled back on the connection itself would go unnoticed. Where it could not begin, the connection gets one that has
// failed: statements on it must not commit by themselves.
func (x *tx) Conn() *pgx.Conn {
	t := x.t
	if !x.closed && t.usable() == nil {
		t.watch()
		t.note(connGiven)
		if err := errors.Join(t.tell(t.ctx), t.goDirect(t.ctx)); err != nil && t.lost == nil {
			t.lost = err // there is nobody else to tell
		}
		t.direct = 0 // for good
	}
	if !t.ended && !t.begun && status(t.conn) == 'I' {
		_, _ = t.conn.Exec(t.ctx, t.begin+"; rollback to savepoint refused") // there is no such savepoint
		if status(t.conn) != 'E' {
			_ = t.conn.Close(t.ctx)
		}
		t.begun = true // and must be rolled back
	}
	return t.conn
}

func (x *tx) LargeObjects() pgx.LargeObjects {
	t := x.t
	if t.foreign != nil {
		return t.foreign.LargeObjects()
	}
	// Only a transaction of pgx's own can make them, and only BeginTx makes such a transaction.
	if t.opens() && !x.closed && t.usable() == nil {
		_ = t.tell(t.ctx) // what comes of it is asked next
	}
	if !t.opens() && !x.closed && t.usable() == nil && status(t.conn) != 'E' { // where BeginTx fails it closes the connection
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
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx().LargeObjects() // every method says that it is closed
}

// mentionsSavepoint reports whether the statement may make a savepoint, or go back to one. Any mention will do: to be
// wrong costs a round trip.
func mentionsSavepoint(sql string) bool { return mentions(sql, "savepoint", "vV") }

// mentions looks for the word, in small letters or not, by a rare letter of it, because it is asked about each statement.
// The letters are that one's spellings, the first as in the word.
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
