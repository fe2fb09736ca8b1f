package outbox

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "outbox", Files: files, Command: "outbox.Migrate", BeforeDown: beforeDown}

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
	return migrations.In(db, schema)
}

// beforeDown refuses to drop what was committed and not published. Nobody can add to it any more: the locks are kept.
func beforeDown(ctx context.Context, tx pgx.Tx, d pgschema.Descent) error {
	if _, err := tx.Exec(ctx, pgschema.Render(`lock table {schema}.outbox, {schema}.outbox_failed, {schema}.outbox_delayed in access exclusive mode`, d.Schema)); err != nil {
		return err
	}
	var waiting, delayed, failed int64
	count := `select (select count(*) from {schema}.outbox), (select count(*) from {schema}.outbox_delayed),
		(select count(*) from {schema}.outbox_failed where state <> 'discarded')`
	if err := tx.QueryRow(ctx, pgschema.Render(count, d.Schema)).Scan(&waiting, &delayed, &failed); err != nil {
		return err
	}
	if waiting+delayed+failed > 0 && !d.Force {
		return fmt.Errorf("events would be lost that are not published: %d in the outbox, %d delayed, %d failed or blocked: "+
			"let a relay drain them, or use force", waiting, delayed, failed)
	}
	return nil
}

// NewID returns a new event ID: a UUIDv7, whose leading bits are the time of its making in milliseconds.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// hashOf is part of the stored format: every writer must agree on it, or a key loses its order. The shard is this number
// modulo the number of shards.
func hashOf(key, eventID string) int64 {
	if key == "" {
		key = eventID // any shard will do
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	s := h.Sum64()
	return int64((s ^ s>>32) & math.MaxInt64)
}
