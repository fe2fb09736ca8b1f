package pgtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errEndedByStatement = fmt.Errorf("a COMMIT or ROLLBACK sent as a statement had ended the transaction: %w", ErrManaged)

// commitable returns an error if COMMIT would not commit anything. The server's answer to COMMIT would not be an error: in a
// failed transaction COMMIT does a ROLLBACK, and outside of a transaction it succeeds.
func commitable(conn *pgx.Conn) error {
	if err := readToEnd(conn); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	switch status(conn) {
	case 'E':
		return fmt.Errorf("commit: a statement of the transaction had failed: %w", pgx.ErrTxCommitRollback)
	case 'I':
		return fmt.Errorf("commit: %w", errEndedByStatement)
	}
	return nil
}

// commit sends the pending entries and COMMIT in one round trip.
func (t *transaction) commit(ctx context.Context) error {
	switch {
	case t.opening != nil && t.opening.Err != nil:
		return fmt.Errorf("commit: %w", t.opening.Err)
	case t.lost != nil:
		return fmt.Errorf("commit: %w", t.lost)
	case t.aborted:
		return fmt.Errorf("commit: a statement of the transaction had failed: %w", pgx.ErrTxCommitRollback)
	case t.begun:
		if err := commitable(t.conn); err != nil {
			return err
		}
	}
	p, err := t.compose(ctx)
	if t.marked >= 0 {
		p.checkMark()
	}
	switch {
	case err != nil:
		return fmt.Errorf("commit: %w", err)
	case t.foreign != nil:
		return t.commitForeign(ctx, p)
	case p.batch.Len() > 0 || t.opens():
		err = t.commitWith(ctx, p)
	case t.begun:
		var tag pgconn.CommandTag
		open := !t.conn.IsClosed()
		tag, err = t.conn.Exec(ctx, "commit")
		err = commitError(lostWhile(open, t.conn, tagError(tag, err)))
	}
	if err == nil {
		t.ended = true
	}
	return err
}

func (t *transaction) commitWith(ctx context.Context, p pipeline) error {
	lead, implicit := t.beginning(), t.implicit(p)
	if implicit {
		lead = lead[1:]
	}
	b := batchAfter(lead, p.batch)
	if !implicit {
		b.Queue("commit")
	}
	open := !t.conn.IsClosed()
	results := t.conn.SendBatch(ctx, b)
	t.sent()
	if refusal, _ := t.takeLead(lead, results); refusal != nil {
		_ = results.Close()
		return fmt.Errorf("commit: %w", refusal)
	}
	f := p.take(results)
	var tag pgconn.CommandTag
	err := f.err
	if err == nil && !implicit {
		tag, err = results.Exec()
		// With the simple protocol a queued text may hold several statements. Each has a result, which is skipped here.
		for err == nil && tag.String() != "COMMIT" && tag.String() != "ROLLBACK" {
			tag, err = results.Exec()
		}
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	if !implicit {
		err = tagError(tag, err)
	}
	if err == nil {
		return nil
	}
	if !f.executed {
		t.settle(err)
	}
	var pgErr *pgconn.PgError
	s := status(t.conn)
	switch {
	case !f.executed, // COMMIT was never sent
		s == 'T', s == 'E', // COMMIT was not executed, and never will be
		f.before && s != 0,                 // an earlier statement failed, and the connection works
		f.before && errors.As(err, &pgErr): // the server reported an error before it executed COMMIT
		return fmt.Errorf("commit: %w", err)
	}
	return commitError(lostWhile(open, t.conn, err))
}

// commitForeign commits a transaction of a DB that is neither a pool nor a connection, with the transaction's own Commit.
func (t *transaction) commitForeign(ctx context.Context, p pipeline) error {
	if p.batch.Len() > 0 {
		if f := p.read(t.q.SendBatch(ctx, p.batch)); f.err != nil {
			return fmt.Errorf("commit: %w", f.err)
		}
	}
	err := commitError(t.foreign.Commit(ctx))
	t.ended = err == nil
	return err
}

// tagError turns the answer to COMMIT into an error: if the transaction had failed, PostgreSQL does a ROLLBACK and reports
// no error.
func tagError(tag pgconn.CommandTag, err error) error {
	switch {
	case err != nil || tag.String() == "COMMIT":
		return err
	case tag.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	}
	return fmt.Errorf("the answer to COMMIT was %q", tag)
}

// lostWhile corrects the error of a connection that was lost after COMMIT was sent. When pgx reads the answers to a batch or
// to the simple protocol, it drops the network error and returns "conn closed". SafeToRetry is then true, as for a connection
// that was closed before anything was sent. lostWhile returns an error for which SafeToRetry is false.
func lostWhile(open bool, conn *pgx.Conn, err error) error {
	if open && conn.IsClosed() && pgconn.SafeToRetry(err) {
		return fmt.Errorf("the connection was lost: %v", err) //nolint:errorlint // wrapping would keep the wrong SafeToRetry
	}
	return err
}

// commitError tells a refused commit from a commit whose answer never came. The error of the latter is ErrOutcomeUnknown.
func commitError(err error) error {
	if err == nil {
		return nil
	}
	var (
		pgErr *pgconn.PgError
		pre   pgx.ErrPreprocessingBatch
	)
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback): // a statement had failed, and the caller ignored its error
		return fmt.Errorf("commit: a statement of the transaction had failed: %w", err)
	case pgconn.SafeToRetry(err), errors.As(err, &pre): // COMMIT was never sent
		return fmt.Errorf("commit: %w", plain(err))
	case errors.As(err, &pgErr) && (pgErr.SeverityUnlocalized == "ERROR" ||
		pgErr.Code == "25P03"): // idle_in_transaction_session_timeout: the server ended the session before it read COMMIT
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", ErrOutcomeUnknown, err)
}
