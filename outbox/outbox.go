package outbox

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"

	"github.com/google/uuid"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "outbox", Files: files, Command: "outbox.Migrate"}

// shards is the number of shards that the migrations create.
const shards = 16

// Migrate creates the outbox's tables in the schema ("" means "millrace"), or brings them up to date. It may run at any
// time, in several processes at once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return fmt.Errorf("migrate outbox: %w", err)
	}
	return migrations.Up(ctx, db, schema)
}

// NewID returns a new event ID: a UUIDv7, whose leading bits are the time of its making in milliseconds.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// shardOf is part of the stored format: every writer must agree on it, or a key loses its order.
func shardOf(key, eventID string) int16 {
	if key == "" {
		key = eventID // any shard will do
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	s := h.Sum64()
	return int16((s ^ s>>32) % shards)
}
