// Package store has the outbox's tables, the statements of publishers and relays, and the formats that all programs must agree on.
package store

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// Files holds the migrations and the statements.
//
//go:embed migrations/*.sql queries/*.sql
var Files embed.FS

// Migrations is the outbox's set of migrations.
var Migrations = pgschema.Line{Component: "outbox", Files: Files, Command: "outbox.Migrate", BeforeDown: beforeDown}

// beforeDown refuses to drop events that were committed and not published. It keeps its locks, so no events can be added afterwards.
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
		return fmt.Errorf("unpublished events would be lost: %d in the outbox, %d delayed, %d failed or blocked: "+
			"let a relay drain them, or use force", waiting, delayed, failed)
	}
	var slot *string
	inLog := `select slot_name::text from pg_replication_slots where slot_name = {schema}.outbox_landing_slot()`
	if err := tx.QueryRow(ctx, pgschema.Render(`select (`+inLog+`)`, d.Schema)).Scan(&slot); err != nil {
		return err
	}
	if slot != nil && !d.Force {
		return fmt.Errorf(`events that are only in the WAL may be lost: let a relay land them, stop the relays and run "select pg_drop_replication_slot('%s')", or use force`, *slot)
	}
	return nil
}

// Query returns the statement of queries/name.sql for the schema.
func Query(name, schema string) string { return pgschema.Query(Files, name, schema) }

// Channel is the NOTIFY channel on which relays learn of new events and operators' commands.
func Channel(schema string) string { return schema + "_outbox" }

// Hash maps a key, or the event ID of an event without a key, to 63 bits. The shard is this number modulo the number of shards. It is
// part of the stored format: if writers computed it differently, a key would lose its order.
func Hash(key, eventID string) int64 {
	if key == "" {
		key = eventID // any shard will do
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	s := h.Sum64()
	return int64((s ^ s>>32) & math.MaxInt64)
}
