package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Listen passes the payloads of notifications to got, until ctx ends or its connection fails. The connection is its own: it waits all the
// time, and the pool's connections are for work. It calls listening when nothing is missed any more.
func Listen(ctx context.Context, pool *pgxpool.Pool, schema string, listening func(), got func(payload string)) error {
	conn, err := Connect(ctx, pool)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
	}()
	if _, err := conn.Exec(ctx, `listen `+pgx.Identifier{Channel(schema)}.Sanitize()); err != nil {
		return err
	}
	listening()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		got(n.Payload)
	}
}
