package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Layout is how keys are spread over shards. If nothing is wrong, all its numbers are the same.
type Layout struct {
	Hash       string
	Shards     int
	Rows       int  // of outbox_shard
	InFunction int  // as outbox_shard_of has it
	Fenced     bool // outbox_next is that of a change
	Sequences  int
}

// ReadLayout returns the layout.
func ReadLayout(ctx context.Context, tx pgx.Tx, schema string) (l Layout, err error) {
	var language string
	err = tx.QueryRow(ctx, Query("layout", schema)).Scan(&l.Hash, &l.Shards, &l.Rows, &language, &l.InFunction, &l.Sequences)
	l.Fenced = language != "sql"
	return l, err
}
