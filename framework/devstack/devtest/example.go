package devtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
)

// ExampleTB is what an Example function, which has no testing.T, hands to this package. What fails panics. It is for one
// goroutine.
type ExampleTB struct {
	testing.TB // only what this package needs of it is defined

	cleanups []func()
}

// Example returns a new one. Defer End.
func Example() *ExampleTB { return &ExampleTB{} }

// End runs what is to be cleaned up.
func (t *ExampleTB) End() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		cleanup()
	}
}

// Database returns a pool on the shared PostgreSQL and the name of a new schema, which is the pool's search path: the
// example's own tables need not name it.
func (t *ExampleTB) Database() (*pgxpool.Pool, string) {
	schema := Schema(t)
	pool := PoolOn(t, Start(t, devstack.Postgres).PostgresDSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = schema
	})
	return pool, schema
}

// Cleanup has End call f, before what was given earlier.
func (t *ExampleTB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Name is the same for all examples.
func (*ExampleTB) Name() string { return "Example" }

// Context never ends.
func (*ExampleTB) Context() context.Context { return context.Background() }

// Failed is false: what fails panics.
func (*ExampleTB) Failed() bool { return false }

// Helper does nothing.
func (*ExampleTB) Helper() {}

// Logf does nothing, because what an example prints is compared.
func (*ExampleTB) Logf(string, ...any) {}

// Fatal panics.
func (*ExampleTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Fatalf panics.
func (*ExampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Errorf panics.
func (*ExampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
