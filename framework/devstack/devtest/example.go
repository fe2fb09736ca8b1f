package devtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
)

// ExampleTB replaces testing.T in Example functions, for the functions of this package. A failure panics. It is not safe for concurrent
// use.
type ExampleTB struct {
	testing.TB // only the methods that this package needs are defined

	cleanups []func()
}

// Example returns a new ExampleTB. Defer End.
func Example() *ExampleTB { return &ExampleTB{} }

// End runs the cleanup functions.
func (t *ExampleTB) End() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		cleanup()
	}
}

// Database returns a pool on the shared PostgreSQL and the name of a new schema. The schema is the pool's search path, so the example's
// own tables need no schema in their names.
func (t *ExampleTB) Database() (*pgxpool.Pool, string) {
	schema := Schema(t)
	pool := PoolOn(t, Start(t, devstack.Postgres).PostgresDSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = schema
	})
	return pool, schema
}

// Cleanup makes End call f, before the functions that were given earlier.
func (t *ExampleTB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Name is the same for all examples.
func (*ExampleTB) Name() string { return "Example" }

// Context returns a context that never ends.
func (*ExampleTB) Context() context.Context { return context.Background() }

// Failed returns false, because a failure panics.
func (*ExampleTB) Failed() bool { return false }

// Helper does nothing.
func (*ExampleTB) Helper() {}

// Logf does nothing, because the output of an example is compared.
func (*ExampleTB) Logf(string, ...any) {}

// Fatal panics.
func (*ExampleTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Fatalf panics.
func (*ExampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Errorf panics.
func (*ExampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
