package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// exampleDatabase has an outbox and the examples' table, in a schema that is the pool's search path.
type exampleDatabase struct {
	testing.TB // of which package devtest needs what is defined below
	cleanups   []func()

	pool   *pgxpool.Pool
	schema string
}

func newExampleDatabase() *exampleDatabase {
	db := &exampleDatabase{}
	db.schema = devtest.Schema(db)
	cfg := devtest.Pool(db).Config()
	cfg.ConnConfig.RuntimeParams["search_path"] = db.schema
	var err error
	if db.pool, err = pgxpool.NewWithConfig(db.Context(), cfg); err != nil {
		panic(err)
	}
	db.Cleanup(db.pool.Close)
	if err := outbox.Migrate(db.Context(), db.pool, db.schema); err != nil {
		panic(err)
	}
	if _, err := db.pool.Exec(db.Context(), `create table labours (id text primary key, completed_at timestamptz)`); err != nil {
		panic(err)
	}
	return db
}

// printOutbox prints what a relay would publish.
func (db *exampleDatabase) printOutbox() {
	rows, err := db.pool.Query(db.Context(), `select topic, key, convert_from(payload, 'UTF8') from outbox order by shard, seq`)
	if err != nil {
		panic(err)
	}
	var topic, key, payload string
	if _, err := pgx.ForEachRow(rows, []any{&topic, &key, &payload}, func() error {
		fmt.Println(topic, key, payload)
		return nil
	}); err != nil {
		panic(err)
	}
}

func (db *exampleDatabase) close() {
	for i := len(db.cleanups) - 1; i >= 0; i-- {
		db.cleanups[i]()
	}
}

func (db *exampleDatabase) Name() string                      { return "example" }
func (db *exampleDatabase) Context() context.Context          { return context.Background() }
func (db *exampleDatabase) Helper()                           {}
func (db *exampleDatabase) Cleanup(f func())                  { db.cleanups = append(db.cleanups, f) }
func (db *exampleDatabase) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (db *exampleDatabase) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (db *exampleDatabase) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
