package outbox

import (
	"context"

	"github.com/google/uuid"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Migrate creates the outbox's tables in the schema ("" means "millrace"), or updates them. It may run at any time, in several
// processes at once, beside producers and relays. If a long transaction holds a lock that it needs, Migrate retries for a minute and
// then returns an error that names the lock.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns the migrator of the outbox's tables in the schema ("" means "millrace"). It migrates up and down, reports what was
// applied, and prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return store.Migrations.In(db, schema)
}

// NewID returns a new event ID: a UUIDv7, which begins with the current time in milliseconds.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
