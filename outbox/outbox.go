package outbox

import (
	"context"

	"github.com/google/uuid"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Migrate creates the outbox's tables in the schema ("" means "millrace"), or brings them up to date. It may run at any
// time, in several processes at once, beside producers and relays. For a minute it tries again where a long transaction
// holds a lock that it needs, and then says which.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns what migrates the outbox's tables in the schema ("" means "millrace") up and down, tells what was
// applied, and prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return store.Migrations.In(db, schema)
}

// NewID returns a new event ID: a UUIDv7, whose leading bits are the time of its making in milliseconds.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
