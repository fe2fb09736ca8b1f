package outbox

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/google/uuid"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "outbox", Files: files, Command: "outbox.Migrate"}

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
