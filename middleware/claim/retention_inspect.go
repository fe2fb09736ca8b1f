package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// Kept is what the store remembers beside the days.
type Kept struct {
	Hashed    int64      `json:"hashed"` // records of IDs that tell no time; counted to 100,000, which means that or more
	Consumers []Consumer `json:"consumers"`
}

// Consumer is one that has claimed.
type Consumer struct {
	Name  string     `json:"name"`
	Floor *time.Time `json:"floor"` // an event that was minted before is not run: see ErrTooOld; nil: none
}

// InspectKept tells what the schema's store ("" means "millrace") remembers.
func InspectKept(ctx context.Context, pool *pgxpool.Pool, schema string) (*Kept, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return nil, fmt.Errorf("inspect claims: %w", err)
	}
	k := &Kept{}
	b := &pgx.Batch{}
	b.Queue(pgschema.Query(files, "claim_hashed", schema)).QueryRow(func(row pgx.Row) error { return row.Scan(&k.Hashed) })
	b.Queue(pgschema.Query(files, "consumer_list", schema)).Query(func(rows pgx.Rows) (err error) {
		k.Consumers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Consumer])
		return err
	})
	if err := pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("inspect claims: %w", (&claims{schema: schema}).hint(err))
	}
	return k, nil
}
