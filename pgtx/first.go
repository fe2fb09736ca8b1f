package pgtx

import (
	"context"
	"errors"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

func batchOf(sql string, args []any) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return b
}

// execText sends the lead and sql as one string, because sql has no arguments and may be several statements.
func (t *transaction) execText(ctx context.Context, lead []statement, sql string) (pgconn.CommandTag, error) {
	before := textOf(lead) + "; "
	tag, err := t.q.Exec(ctx, before+sql)
	t.settleText(err)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && int(pgErr.Position) > len(before) {
		pgErr.Position -= int32(utf8.RuneCountInString(before)) // the position in the caller's own text
	}
	return tag, err
}

// sendAfter sends the lead and the batch in one round trip. It returns the results of the batch, without those of the lead.
func (t *transaction) sendAfter(ctx context.Context, lead []statement, b *pgx.Batch) *ledResults {
	r := &ledResults{BatchResults: t.q.SendBatch(ctx, batchAfter(lead, b)), t: t, began: !t.begun}
	t.sent() // closeAfter calls settle
	switch refusal, err := t.takeLead(lead, r); {
	case refusal != nil:
		_ = r.Close()
		return &ledResults{BatchResults: pgx.FailedBatchResults(b, refusal), t: t, closed: true}
	case err == nil:
		t.told()
	}
	return r
}

func batchAfter(lead []statement, b *pgx.Batch) *pgx.Batch {
	if len(lead) == 0 {
		return b
	}
	all := &pgx.Batch{}
	for _, s := range lead {
		all.Queue(s.sql, s.args...)
	}
	all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
	return all
}

// takeLead reads the results of the lead. If one is an error, results returns the same error again later. refusal is the
// error of the opening, if the server has refused the opening.
func (t *transaction) takeLead(lead []statement, results pgx.BatchResults) (refusal, err error) {
	for _, s := range lead {
		if _, err := results.Exec(); err != nil {
			return t.refused(s, err), err
		}
	}
	return nil, nil
}

// send sends the batch, in the same round trip as its lead if possible.
func (t *transaction) send(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if b.Len() == 0 {
		return t.q.SendBatch(ctx, b)
	}
	statements := statementsOf(b)
	lead, unknown, err := t.lead(ctx, statements...)
	switch {
	case err != nil:
		return pgx.FailedBatchResults(b, err)
	case unknown:
		return &ledResults{BatchResults: t.q.SendBatch(ctx, b), t: t, unknown: statements}
	case len(lead) > 0:
		return t.sendAfter(ctx, lead, b)
	}
	return t.q.SendBatch(ctx, b)
}

// ledResults are the results of a batch that was sent with a lead, or whose statements were new to the connection.
type ledResults struct {
	pgx.BatchResults
	t       *transaction
	began   bool
	unknown []statement
	closed  bool
}

func (r *ledResults) Close() error { return r.closeAfter(nil) }

// closeAfter closes the results and returns the first error.
func (r *ledResults) closeAfter(err error) error {
	cerr := r.BatchResults.Close()
	if err == nil {
		err = cerr
	}
	if !r.closed {
		r.closed = true
		switch {
		case r.began:
			r.t.settle(err)
		case r.unknown != nil && err == nil:
			r.t.learn(r.unknown)
		}
	}
	return plain(err)
}

// plain removes the wrapper that pgx puts around the error of a statement in a batch.
func plain(err error) error {
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) {
		return pre.Unwrap()
	}
	return err
}

// rows returns the rows of the batch's only statement. Closing the rows closes the results.
func (r *ledResults) rows() (pgx.Rows, error) {
	rows, err := r.Query()
	f := &ledRows{Rows: rows, results: r}
	if err != nil {
		f.Close()
		return f, f.Err()
	}
	return f, nil
}

type ledRows struct {
	pgx.Rows
	results *ledResults
	err     error // the error that closing the results returned
}

func (f *ledRows) Close() {
	f.Rows.Close()
	if err := f.results.Close(); f.err == nil {
		f.err = err
	}
}

func (f *ledRows) Err() error {
	if err := f.Rows.Err(); err != nil {
		return plain(err)
	}
	return f.err
}

func (f *ledRows) Next() bool {
	if f.Rows.Next() {
		return true
	}
	f.Close()
	return false
}

func (f *ledRows) Scan(dest ...any) error {
	err := f.Rows.Scan(dest...)
	if err != nil { // pgx has closed the rows
		f.Close()
	}
	return err
}

func (f *ledRows) Values() ([]any, error) {
	values, err := f.Rows.Values()
	if err != nil {
		f.Close()
	}
	return values, err
}

// failedRows returns rows for a query that was not sent: their Err returns err.
func failedRows(err error) pgx.Rows {
	rows, _ := pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	return rows
}

// row is a pgx.Row that scans the first of the rows.
type row struct{ rows pgx.Rows }

func (r row) Scan(dest ...any) error {
	defer r.rows.Close()
	if err := r.rows.Err(); err != nil {
		return err
	}
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("cannot scan into *pgtype.DriverBytes from QueryRow")
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	_ = r.rows.Scan(dest...) // the rows keep the error
	r.rows.Close()
	return r.rows.Err()
}
