package pgtx

import (
	"context"
	"errors"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// fitsBatch reports whether pgx can send the statement in a batch, which knows no options but a rewriter.
func fitsBatch(sql string, args []any) bool {
	if sql == "" {
		return false
	}
	for _, arg := range args {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return false
		case pgx.QueryRewriter:
		default:
			return true
		}
	}
	return true
}

func batchOf(sql string, args []any) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return b
}

// execFirst sends BEGIN and a statement without arguments as one string, because it may be several statements.
func (t *transaction) execFirst(ctx context.Context, sql string) (pgconn.CommandTag, error) {
	begin := t.begin + "; "
	tag, err := t.conn.Exec(ctx, begin+sql)
	t.settle(err)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && int(pgErr.Position) > len(begin) {
		pgErr.Position -= int32(utf8.RuneCountInString(begin)) // in the caller's own text
	}
	return tag, err
}

// sendFirst sends BEGIN and the batch in one round trip. The results are the batch's.
func (t *transaction) sendFirst(ctx context.Context, b *pgx.Batch) *firstResults {
	all := &pgx.Batch{}
	all.Queue(t.begin)
	all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
	r := &firstResults{BatchResults: t.conn.SendBatch(ctx, all), t: t}
	t.begun = true  // and settled when the results are closed
	_, _ = r.Exec() // of BEGIN; the results keep its error and repeat it
	return r
}

// firstResults are those of the batch that brought BEGIN along.
type firstResults struct {
	pgx.BatchResults
	t      *transaction
	closed bool
}

func (r *firstResults) Close() error { return r.closeAfter(nil) }

// closeAfter closes the results and returns the first error.
func (r *firstResults) closeAfter(err error) error {
	cerr := r.BatchResults.Close()
	if err == nil {
		err = cerr
	}
	if !r.closed {
		r.closed = true
		r.t.settle(err)
	}
	return plain(err)
}

// plain takes off what pgx wraps around the error of a statement only because it was in a batch.
func plain(err error) error {
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) {
		return pre.Unwrap()
	}
	return err
}

// rows are those of the batch's only statement. Closing them closes the results.
func (r *firstResults) rows() (pgx.Rows, error) {
	rows, err := r.Query()
	f := &firstRows{Rows: rows, results: r}
	if err != nil {
		f.Close()
		return f, f.Err()
	}
	return f, nil
}

type firstRows struct {
	pgx.Rows
	results *firstResults
	err     error // of what came after the rows
}

func (f *firstRows) Close() {
	f.Rows.Close()
	if err := f.results.Close(); f.err == nil {
		f.err = err
	}
}

func (f *firstRows) Err() error {
	if err := f.Rows.Err(); err != nil {
		return plain(err)
	}
	return f.err
}

func (f *firstRows) Next() bool {
	if f.Rows.Next() {
		return true
	}
	f.Close()
	return false
}

func (f *firstRows) Scan(dest ...any) error {
	err := f.Rows.Scan(dest...)
	if err != nil { // pgx has closed the rows
		f.Close()
	}
	return err
}

func (f *firstRows) Values() ([]any, error) {
	values, err := f.Rows.Values()
	if err != nil {
		f.Close()
	}
	return values, err
}

// failedRows are the rows of a query that was not sent.
func failedRows(err error) pgx.Rows {
	rows, _ := pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	return rows
}

// row is the first of the rows.
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
