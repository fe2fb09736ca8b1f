package claim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// SQLStore is a PostgresStore for services whose code uses database/sql: the handler finds its *sql.Tx with
// pgtx.SQLFrom(msg.Context()), and messages that it returns are staged in the outbox on it. It shares the tables, so
// consumers with either store exclude one another. It is safe for concurrent use. Each running claim holds one connection.
//
// It lacks what rests on pgx: it does not count attempts and keeps no event that fails, so a Claim's errors go to the
// router; Claim.Run, Claim.Subscriber and ordered keys need a PostgresStore; BEGIN, COMMIT and each staged message are
// round trips of their own. Let "millrace retention run" keep its tables.
type SQLStore struct {
	claims
	db *sql.DB
}

// NewSQLStore returns a store in the database of db, whose driver is pgx's stdlib or another of PostgreSQL's whose
// placeholders are $1. It stays the caller's.
func NewSQLStore(db *sql.DB, opts ...PostgresOption) *SQLStore {
	s := &SQLStore{db: db}
	s.begin = s.transaction
	s.ask = func(ctx context.Context, query string, args []any, dest ...any) error {
		return db.QueryRowContext(ctx, query, args...).Scan(dest...)
	}
	s.prepare(opts)
	if db == nil {
		s.err = errors.Join(s.err, errors.New("db is nil: want the *sql.DB of the service's database"))
	}
	return s
}

// Do runs fn in a transaction that also claims the event; fn's context carries it. See PostgresStore.Do. fn must not end
// the transaction.
func (s *SQLStore) Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	return s.place(ctx, key, fn)
}

func (s *SQLStore) transaction(ctx context.Context, fn func(ctx context.Context, ask asker) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // also of a panic; after the commit it does nothing
	err = fn(pgtx.WithSQL(ctx, tx), func(ctx context.Context, query string, args []any, dest ...any) error {
		for i := range dest {
			if dest[i] == nil { // pgx skips it
				dest[i] = new(any)
			}
		}
		return tx.QueryRowContext(ctx, query, args...).Scan(dest...)
	})
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return sqlCommitError(err)
	}
	return nil
}

// sqlCommitError tells a refused commit from one whose answer never came.
func sqlCommitError(err error) error {
	state := sqlState(err)
	lost := state == "" || strings.HasPrefix(state, "57") || strings.HasPrefix(state, "08") // the server went, or the connection
	if lost && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit: %w: %w", pgtx.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("commit: %w", err)
}
