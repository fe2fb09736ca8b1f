package pgtx

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgunit"
)

// rollbackTimeout limits the ROLLBACK. ROLLBACK is sent even if the caller's context has ended, so that the connection
// can go back to the pool instead of being closed. Without it the server would roll back too, when the connection ends.
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

// transaction is a transaction that Run began, or will begin with the first statement.
type transaction struct {
	db      DB              // as Run was given it
	handle  DB              // db without its wrappers
	ctx     context.Context // Run's context, for Conn and LargeObjects, which have no context parameter
	conn    *pgx.Conn
	q       querier
	foreign pgx.Tx // a transaction of a DB that is neither a pool nor a connection; such a DB sends BEGIN at once
	release func()

	begin   string // the BEGIN statement
	opening *pgunit.Opening
	begun   bool
	aborted bool // the server refused the first statement before it executed BEGIN: nothing more may be sent
	ended   bool
	healed  bool        // a statement failed in a savepoint that was rolled back
	session atomic.Bool // a statement may have changed a setting of the session
	lost    error       // an error of Conn, which cannot return one: commit returns it

	mu         sync.Mutex // callers that publish from several goroutines, which is a mistake, must not corrupt the fields below
	after      []func()
	done       bool // Run is about to return: AfterCommit refuses functions
	pending    []*entry
	savepoints []*tx  // the open savepoints, outermost first
	owed       string // the savepoint that has ended, and whose RELEASE was not sent yet
	noting     bool   // note records statements that leave something behind
	direct     int    // the number of savepoints that were open when goDirect was called; -1 while entries wait for COMMIT
	watched    bool   // the connection was given away: commit checks the mark
	marked     int    // the number of savepoints that were open when the mark was set; -1: it is not set
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
		t.conn, t.q, t.release = c.Conn(), c.Conn(), t.releaseUnchanged(c)
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

// releaseUnchanged returns a function that gives the connection back to its pool. If the transaction may have changed a setting of the
// session, such as search_path, the function closes the connection: in the pool the setting would apply to the transactions of others.
func (t *transaction) releaseUnchanged(c *pgxpool.Conn) func() {
	const setting = "default_transaction_read_only" // the server reports changes of it, also those that a function makes
	before := c.Conn().PgConn().ParameterStatus(setting)
	return func() {
		if t.session.Load() || c.Conn().PgConn().ParameterStatus(setting) != before {
			_ = c.Conn().Close(context.Background()) // the pool makes another one
		}
		c.Release()
	}
}

// on reports whether the transaction was begun on the handle, or whether the handle is the transaction's connection.
func (t *transaction) on(handle DB) bool {
	return t.handle == handle || t.conn != nil && connOf(handle) == t.conn
}

// status returns the transaction status of the server's last answer: 'I' (no transaction), 'T' (in a transaction), 'E' (in a
// failed transaction), or 0 if the status is not known.
func status(conn *pgx.Conn) byte {
	if conn == nil || conn.IsClosed() || conn.PgConn().IsBusy() {
		return 0
	}
	return conn.PgConn().TxStatus()
}

// readToEnd returns an error if the results of an earlier statement were not read: then nothing more can be sent.
func readToEnd(conn *pgx.Conn) error {
	if conn != nil && !conn.IsClosed() && conn.PgConn().IsBusy() {
		return errors.New("the rows of a query, or the results of a batch, were not closed")
	}
	return nil
}

// usable returns an error if no statement may be sent.
func (t *transaction) usable() error {
	switch {
	case t.ended:
		return pgx.ErrTxClosed
	case t.opening != nil && t.opening.Err != nil:
		return t.opening.Err
	case t.aborted: // the server would answer the same
		return failed()
	case t.begun && status(t.conn) == 'I':
		return errEndedByStatement
	}
	return nil
}

// settle finds out whether the server has executed BEGIN. err is the error of the round trip that carried BEGIN.
func (t *transaction) settle(err error) {
	t.begun = true
	if err == nil || t.conn.IsClosed() || t.conn.PgConn().TxStatus() != 'I' {
		return
	}
	// BEGIN was not executed. If the server has refused the statement, while preparing it, the transaction must behave as
	// a failed one. Otherwise nothing was sent, and BEGIN goes with the next statement.
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
		t.conn.Close(ctx) // the transaction is still open on it, so the pool must not hand it out
	}
	return err
}
