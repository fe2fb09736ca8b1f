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

// cleanupTimeout bounds the cleanup after a test, also on a busy machine.
const cleanupTimeout = 2 * time.Minute

// Pool returns a pool on the shared PostgreSQL, in the database of its DSN. It is closed when the test ends. The test fails if it still
// holds a connection then.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	dsn := Start(t, devstack.Postgres).PostgresDSN()
	return PoolOn(t, dsn)
}

// PoolOn is Pool for a server of the test's own. Each option may change the pool's configuration.
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

// Schema creates a schema for this test in the shared PostgreSQL and returns its name, which needs no quoting. The schema and its
// contents are dropped when the test ends.
func Schema(t testing.TB) string {
	t.Helper()
	// A transaction that the test left open would block the drop until the context ends.
	schema, _ := own(t, "schema", "set lock_timeout = '15s'; drop schema %s cascade")
	return schema
}

// Database creates a database for this test in the shared PostgreSQL and returns its DSN. It is for tests that objects of other tests
// would disturb. It is dropped when the test ends.
func Database(t testing.TB) (dsn string) {
	t.Helper()
	database, shared := own(t, "database", "drop database %s with (force)")
	return onDatabase(shared, database)
}

// own creates a schema or a database in the shared PostgreSQL. It returns its name, and the DSN of the shared PostgreSQL. When the test
// ends, it runs the statement drop, with the name in it.
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

// DropSlots drops the replication slots whose names begin with prefix, when the test ends. The server may take a moment to see that nobody
// reads a slot any more.
func DropSlots(t testing.TB, pool *pgxpool.Pool, prefix string) {
	t.Helper()
	t.Cleanup(func() {
		for end := time.Now().Add(cleanupTimeout); ; time.Sleep(20 * time.Millisecond) {
			_, err := pool.Exec(context.Background(), `select pg_drop_replication_slot(slot_name) from pg_replication_slots where starts_with(slot_name, $1)`, prefix)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("drop the slots %s…: %v", prefix, err)
				return
			}
		}
	})
}

// execute runs the statements on a new connection.
func execute(ctx context.Context, dsn, statements string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statements' error matters
	_, err = conn.Exec(ctx, statements)
	return err
}

// Databases creates n databases for this test in the shared PostgreSQL and returns their DSNs. prepare fills the first one, and the
// others are copies of it. They are dropped when the test ends.
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
			// file_copy, because a WAL log of the copy is many times larger than what a test writes.
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

// onDatabase returns the DSN with another database.
func onDatabase(dsn, database string) string {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		u.Path = "/" + database
		return u.String()
	}
	return dsn + " dbname=" + database // the last value applies
}
