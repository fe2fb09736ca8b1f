// Package expire discards dead letters about which nobody has decided in time.
package expire

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Config says which dead letters expire. Every field is set.
type Config struct {
	Service, Schema string
	Keep            map[string]time.Duration // consumer -> how long its dead letters are kept; other consumers keep theirs
	Meter           metric.Meter
	Log             *slog.Logger
}

// New returns a function that discards expired dead letters until its context ends. If Keep is empty, the function does nothing.
func New(pool *pgxpool.Pool, cfg Config) (run func(context.Context) error, err error) {
	counter, err := cfg.Meter.Int64Counter("millrace.claim.expired", metric.WithUnit("{event}"),
		metric.WithDescription("Dead letters that were discarded because nobody decided about them in time."))
	if err != nil {
		return nil, fmt.Errorf("count dead letters that expire: %w", err)
	}
	if len(cfg.Keep) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	by := deadletter.By{Actor: "service " + cfg.Service, Note: "kept for as long as dead_letters.keep says"}
	expire := func(ctx context.Context) error {
		expired, err := deadletter.Expire(ctx, pool, cfg.Schema, cfg.Keep, by)
		for consumer, n := range expired {
			counter.Add(ctx, int64(n), metric.WithAttributes(attribute.String("millrace.consumer", consumer)))
			cfg.Log.WarnContext(ctx, "dead letters have expired", "consumer", consumer, "events", n)
		}
		return err
	}
	return func(ctx context.Context) error { return pgdays.Every(ctx, cfg.Log, "dead letters", expire) }, nil
}
