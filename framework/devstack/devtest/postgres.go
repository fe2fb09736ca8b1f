package devtest

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/framework/devstack"
)

// cleanupTimeout bounds what happens after a test.
const cleanupTimeout = 20 * time.Second

// Pool returns a pool on the shared PostgreSQL, in the database of its DSN. It is closed when the test ends, which fails
// when the test still holds a connection.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	dsn := Start(t, devstack.Postgres).PostgresDSN()
	return PoolOn(t, dsn)
}

// PoolOn is Pool for a server of the test's own. Each of options may change the pool's configuration.
func PoolOn(t testing.TB, dsn string, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("open a pool: %v", err)
	}
	for _, option := range options {
		option(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("open a pool: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close() // waits for every connection
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(cleanupTimeout):
			t.Errorf("%d connections of devtest.Pool are still in use %v after the test", pool.Stat().AcquiredConns(), cleanupTimeout)
		}
	})
	return pool
}

// Schema creates a schema of the test's own in the shared PostgreSQL and returns its name, which needs no quoting. It is
// dropped with all it holds when the test ends.
func Schema(t testing.TB) string {
	t.Helper()
	// A transaction that the test left open would block the drop until the context ends.
	schema, _ := own(t, "schema", "set lock_timeout = '15s'; drop schema %s cascade")
	return schema
}

// Database creates a database of the test's own in the shared PostgreSQL, for a test that what others create or drop in the
// same database would disturb, and returns its DSN. It is dropped when the test ends.
func Database(t testing.TB) (dsn string) {
	t.Helper()
	database, shared := own(t, "database", "drop database %s with (force)")
	return onDatabase(shared, database)
}

// own creates a schema or a database in the shared PostgreSQL and returns its name, and the DSN of that. When the test ends, it
// is dropped by a statement that names it.
func own(t testing.TB, kind, drop string) (called, dsn string) {
	t.Helper()
	dsn, called = Start(t, devstack.Postgres).PostgresDSN(), name(t, "t_", '_', 30)
	if err := execute(t.Context(), dsn, "create "+kind+" "+called); err != nil {
		t.Fatalf("create %s %s: %v", kind, called, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := execute(ctx, dsn, fmt.Sprintf(drop, called)); err != nil {
			t.Errorf("drop %s %s: %v", kind, called, err)
		}
	})
	return called, dsn
}

// execute runs statements on a connection of their own.
func execute(ctx context.Context, dsn, statements string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statements' error counts
	_, err = conn.Exec(ctx, statements)
	return err
}

// Databases creates n databases of the test's own in the shared PostgreSQL, each with what prepare has made in the first, and
// returns their DSNs. They are dropped when the test ends.
func Databases(t testing.TB, n int, prepare func(dsn string) error) (dsns []string) {
	t.Helper()
	shared := Start(t, devstack.Postgres).PostgresDSN()
	first := Database(t)
	if err := prepare(first); err != nil {
		t.Fatalf("prepare a database: %v", err)
	}
	template, dsns := databaseOf(t, first), make([]string, n)
	dsns[0] = first
	var creating errgroup.Group
	creating.SetLimit(4)
	for i := range dsns[1:] {
		called := fmt.Sprintf("%s_%d", template, i+1)
		dsns[i+1] = onDatabase(shared, called)
		creating.Go(func() error {
			// The files are copied, because a log of the copy is many times as large as what a test writes.
			return execute(t.Context(), shared, "create database "+called+" template "+template+" strategy file_copy")
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout+time.Duration(n)*5*time.Second)
		defer cancel()
		var dropping errgroup.Group
		dropping.SetLimit(8) // each waits for a checkpoint, which several can share
		for _, dsn := range dsns[1:] {
			dropping.Go(func() error {
				return execute(ctx, shared, "drop database if exists "+databaseOf(t, dsn)+" with (force)")
			})
		}
		if err := dropping.Wait(); err != nil {
			t.Errorf("drop a database: %v", err)
		}
	})
	if err := creating.Wait(); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	return dsns
}

func databaseOf(t testing.TB, dsn string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("read a DSN: %v", err)
	}
	return cfg.Database
}

// onDatabase is the DSN with another database.
func onDatabase(dsn, database string) string {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		u.Path = "/" + database
		return u.String()
	}
	return dsn + " dbname=" + database // the last one holds
}
