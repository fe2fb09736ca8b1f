package outbox_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
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
	return db.create()
}

// newExampleDatabaseWithLog is newExampleDatabase on a server of its own: the relay's slot waits for the transactions of the whole server.
func newExampleDatabaseWithLog() *exampleDatabase {
	db := &exampleDatabase{ExampleTB: devtest.Example(), schema: "example"}
	db.pool = devtest.PoolOn(db, devtest.Postgres(db, devstack.ServerConfig{}).DSN(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = db.schema })
	return db.create()
}

func (db *exampleDatabase) create() *exampleDatabase {
	if err := outbox.Migrate(db.Context(), db.pool, db.schema); err != nil {
		panic(err)
	}
	if _, err := db.pool.Exec(db.Context(), `create table labours (id text primary key, completed_at timestamptz)`); err != nil {
		panic(err)
	}
	return db
}

// exampleBroker is a broker that has one event in it.
type exampleBroker chan string

func newExampleBroker() exampleBroker { return make(exampleBroker, 1) }

// Publish implements message.Publisher.
func (b exampleBroker) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		b <- fmt.Sprintf("%s %s %s", topic, transport.Key(m), m.Payload)
	}
	return nil
}

// Close implements message.Publisher.
func (exampleBroker) Close() error { return nil }

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
