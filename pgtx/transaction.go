package pgtx

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgunit"
)

// rollbackTimeout bounds the ROLLBACK, which also runs when the caller's context has ended, so that the connection
// goes back to the pool instead of being torn down. The server rolls back in any case.
const rollbackTimeout = 5 * time.Second

// querier is a connection, or the transaction of a DB that is neither a pool nor a connection.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
}

// transaction is one that Run began, or will begin with the first statement.
type transaction struct {
	db      DB              // as Run was given it
	handle  DB              // db without its wrappers
	ctx     context.Context // Run's own, for Conn and LargeObjects, which are given none
	conn    *pgx.Conn
	q       querier
	foreign pgx.Tx // of a DB that is neither a pool nor a connection; it was begun at once
	release func()

	begin   string // the statement
	opening *pgunit.Opening
	begun   bool
	aborted bool // the server refused the first statement before it came to BEGIN: nothing more may be sent
	ended   bool
	healed  bool  // a statement failed in a savepoint that was rolled back
	lost    error // what Conn could not report: the commit does

	mu         sync.Mutex // Publish of several goroutines is a mistake that must not corrupt anything
	after      []func()
	done       bool // what is registered now is not called
	pending    []*entry
	savepoints []*tx  // those that are open, outermost first
	owed       string // the savepoint that has ended and that the server still has
	noting     bool   // what statements leave behind
	direct     int    // how many savepoints were open when it went over to sending at once; -1 while it collects
	watched    bool   // its connection was given away: the commit looks for the mark
	marked     int    // how many savepoints were open when the mark was set; -1: it is not set
}

func open(ctx context.Context, db DB, isolation pgx.TxIsoLevel) (*transaction, error) {
	t := &transaction{db: db, handle: unwrap(db), ctx: ctx, release: func() {}, begin: "begin", direct: -1, marked: -1}
	if isolation != "" {
		t.begin += " isolation level " + string(isolation)
	}
	switch db := db.(type) {
	case *pgxpool.Pool:
		c, err := db.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		t.conn, t.q, t.release = c.Conn(), c.Conn(), releaseUnchanged(c)
	case *pgx.Conn:
		t.conn, t.q = db, db
	default:
		tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation})
		if err != nil {
			return nil, err
		}
		t.conn, t.q, t.foreign, t.begun = tx.Conn(), tx, tx, true
	}
	return t, nil
}

// releaseUnchanged returns what gives the connection back to its pool. A connection that refuses writes since the session
// setting was changed is closed: in the pool it would fail the transactions of others.
func releaseUnchanged(c *pgxpool.Conn) func() {
	const setting = "default_transaction_read_only" // which the server reports
	before := c.Conn().PgConn().ParameterStatus(setting)
	return func() {
		if c.Conn().PgConn().ParameterStatus(setting) != before {
			_ = c.Conn().Close(context.Background()) // the pool makes another one
		}
		c.Release()
	}
}

// on reports whether the transaction was begun on the handle, or is that of its connection.
func (t *transaction) on(handle DB) bool {
	return t.handle == handle || t.conn != nil && connOf(handle) == t.conn
}

// status is the server's view of the transaction as of its last answer: 'I' (none), 'T', 'E' (failed), or 0 when it
// cannot be known.
func status(conn *pgx.Conn) byte {
	if conn == nil || conn.IsClosed() || conn.PgConn().IsBusy() {
		return 0
	}
	return conn.PgConn().TxStatus()
}

// readToEnd reports that somebody has left results unread. What comes next could not be sent.
func readToEnd(conn *pgx.Conn) error {
	if conn != nil && !conn.IsClosed() && conn.PgConn().IsBusy() {
		return errors.New("the rows of a query, or the results of a batch, were not closed")
	}
	return nil
}

// usable reports why a statement must not be sent.
func (t *transaction) usable() error {
	switch {
	case t.ended:
		return pgx.ErrTxClosed
	case t.opening != nil && t.opening.Err != nil:
		return t.opening.Err
	case t.aborted: // as the server would have answered
		return failed()
	case t.begun && status(t.conn) == 'I':
		return errEndedByStatement
	}
	return nil
}

// settle finds out what became of BEGIN after the round trip that carried it, which ended with err.
func (t *transaction) settle(err error) {
	t.begun = true
	if err == nil || t.conn.IsClosed() || t.conn.PgConn().TxStatus() != 'I' {
		return
	}
	// BEGIN was not executed. Where the server refused the statement, which it did while preparing it, the transaction
	// must behave as a failed one; otherwise nothing was sent, and the next statement brings BEGIN along.
	t.begun = false
	if t.opening != nil {
		t.opening.Sent = false
	}
	var pgErr *pgconn.PgError
	t.aborted = errors.As(err, &pgErr)
}

func (t *transaction) rollback(ctx context.Context) error {
	t.ended = true
	if t.foreign != nil {
		return t.foreign.Rollback(ctx)
	}
	if !t.begun || t.conn.IsClosed() || status(t.conn) == 'I' {
		return nil
	}
	_, err := t.conn.Exec(ctx, "rollback")
	if err != nil {
		t.conn.Close(ctx) // nobody else may get it as it is
	}
	return err
}
