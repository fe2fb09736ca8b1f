package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// fill gives the consumer's record that many events. Their IDs are of the day until now, in their order, so that the
// claims that follow go where these are.
func (c *claiming) fill(ctx context.Context, who consumer, rows int) error {
	began := time.Now()
	who.events = 1
	if _, _, err := c.counted(ctx, who, 0, 0); err != nil { // gives the consumer its number
		return err
	}
	schema := c.grownSchema()
	var number int16
	if err := c.pool.QueryRow(ctx, `select id from `+schema+`.consumer where name = $1`, claimName).Scan(&number); err != nil {
		return err
	}
	now := time.Now().UTC()
	step := now.Sub(now.Truncate(24*time.Hour)) / time.Duration(rows)
	n := 0
	_, err := c.pool.CopyFrom(ctx, pgx.Identifier{schema, "processed"}, []string{"event_id", "consumer"}, pgx.CopyFromFunc(func() ([]any, error) {
		if n == rows {
			return nil, nil
		}
		n++
		return []any{idAt(now.Add(-step * time.Duration(rows-n))), number}, nil
	}))
	if err != nil {
		return err
	}
	if err := settle(ctx, c.pool, processed(schema)); err != nil {
		return err
	}
	c.env.progress("a record of %s events, filled in %.0f s", thousands(float64(rows)), time.Since(began).Seconds())
	return nil
}

// idAt is a UUIDv7 of that time.
func idAt(at time.Time) pgtype.UUID {
	id := pgtype.UUID{Valid: true}
	binary.BigEndian.PutUint64(id.Bytes[:8], uint64(at.UnixMilli())<<16|0x7000|uint64(rand.N(0x1000)))
	binary.BigEndian.PutUint64(id.Bytes[8:], 1<<63|rand.Uint64()>>2)
	return id
}
