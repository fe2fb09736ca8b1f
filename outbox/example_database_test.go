package outbox_test

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// exampleDatabase has an outbox and the examples' table, in a schema that is the pool's search path.
type exampleDatabase struct {
	*devtest.ExampleTB

	pool   *pgxpool.Pool
	schema string
}

func newExampleDatabase() *exampleDatabase {
	db := &exampleDatabase{ExampleTB: devtest.Example()}
	db.pool, db.schema = db.Database()
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
