package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// RelayConfig configures a Relay. Its zero value is ready for use.
type RelayConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// BatchSize is how many events of a shard are read and published at once, 1 to 10,000. It is also how many events
	// per shard are published again, with the same IDs, when a relay is killed. Default: 500.
	BatchSize int

	// PollInterval is how often the relay looks for events of which no wake-up told it: those of transactions that
	// Millrace did not begin. 10 ms or more. Default: 1 s.
	PollInterval time.Duration

	// LeaseTTL is how long the shards of a killed relay stay without one. 500 ms or more. Default: 5 s.
	LeaseTTL time.Duration

	// PublishTimeout bounds the publishing of one batch by a transport.BatchPublisher; another publisher's Publish takes
	// no context and has to return by itself. What was not acknowledged by then is published again. Default: 30 s.
	PublishTimeout time.Duration

	// DrainTimeout bounds how long Run waits, after its context has ended, for the batches in flight, before it cancels
	// them. Default: 10 s.
	DrainTimeout time.Duration

	// Logger gets what the relay retries. Default: slog.Default().
	Logger *slog.Logger
}

func (c RelayConfig) withDefaults() RelayConfig {
	if c.BatchSize == 0 {
		c.BatchSize = 500
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.PollInterval, time.Second},
		{&c.LeaseTTL, 5 * time.Second},
		{&c.PublishTimeout, 30 * time.Second},
		{&c.DrainTimeout, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c RelayConfig) validate() error {
	var errs []error
	if c.BatchSize < 1 || c.BatchSize > 10_000 {
		errs = append(errs, fmt.Errorf("RelayConfig.BatchSize is %d: want 1 to 10000, or 0 for the default", c.BatchSize))
	}
	for _, d := range []struct {
		name       string
		value, min time.Duration
	}{
		{"PollInterval", c.PollInterval, 10 * time.Millisecond},
		{"LeaseTTL", c.LeaseTTL, 500 * time.Millisecond},
		{"PublishTimeout", c.PublishTimeout, time.Millisecond},
		{"DrainTimeout", c.DrainTimeout, time.Millisecond},
	} {
		if d.value < d.min {
			errs = append(errs, fmt.Errorf("RelayConfig.%s is %v: want %v or more, or 0 for the default", d.name, d.value, d.min))
		}
	}
	return errors.Join(errs...)
}

// Relay forwards committed events to a broker. Any number of relays, in any number of processes, share the work: each
// shard belongs to one of them at a time. Run does the work; Nudge may be called concurrently with it.
type Relay struct {
	cfg       RelayConfig
	id        uuid.UUID
	pool      *pgxpool.Pool
	publisher message.Publisher
	sql       queries
	running   atomic.Bool
	nudge     chan struct{}

	ending  sync.WaitGroup // workers, and those that give shards back
	mu      sync.Mutex
	workers map[int16]*worker // the shards that this relay holds
}

type queries struct{ read, delete, pending, seen, gone, release, take string }

// NewRelay returns a relay that publishes with publisher, faster where that is a transport.BatchPublisher. Pool and
// publisher stay the caller's; the relay uses up to two connections of the pool at rest and one per busy shard, and one
// of its own for LISTEN.
func NewRelay(pool *pgxpool.Pool, publisher message.Publisher, cfg RelayConfig) (*Relay, error) {
	var errs []error
	if pool == nil {
		errs = append(errs, errors.New("pool is nil: want the *pgxpool.Pool of the database that holds the outbox"))
	}
	if publisher == nil {
		errs = append(errs, errors.New("publisher is nil: want the publisher of a transport"))
	}
	if _, ok := publisher.(*Publisher); ok {
		errs = append(errs, errors.New("publisher is the outbox's own: want the publisher of a transport"))
	}
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("RelayConfig.%w", err))
	}
	cfg.Schema = schema
	cfg = cfg.withDefaults()
	if err := errors.Join(append(errs, cfg.validate())...); err != nil {
		return nil, fmt.Errorf("outbox relay: %w", err)
	}
	query := func(name string) string { return pgschema.Query(files, name, schema) }
	return &Relay{
		cfg: cfg, id: uuid.New(), pool: pool, publisher: publisher,
		sql: queries{
			read: query("read"), delete: query("delete"), pending: query("pending"), seen: query("relay_seen"),
			gone: query("relay_gone"), release: query("lease_release"), take: query("lease_take"),
		},
		nudge:   make(chan struct{}, 1),
		workers: map[int16]*worker{},
	}, nil
}

// Nudge makes the relay look for events now: call it after a commit that Millrace did not make. It never blocks.
func (r *Relay) Nudge() { signal(r.nudge) }

// Run forwards events until ctx ends. Then it takes no further batch, lets those in flight finish within DrainTimeout,
// gives its shards back and returns nil. It returns an error only when it cannot start: the database does not answer,
// its schema does not fit, or the relay has run before. Later failures of database and broker are retried with backoff.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("run outbox relay: it has run before: create another with NewRelay")
	}
	if err := migrations.Check(ctx, r.pool, r.cfg.Schema); err != nil {
		return fmt.Errorf("run outbox relay: %w", err)
	}
	wake, stopWake := onWakeUp(r.cfg.Schema)
	defer stopWake()

	// What is in flight when ctx ends gets DrainTimeout to finish.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	var loops sync.WaitGroup
	loops.Go(func() { r.listen(ctx, wake) })
	loops.Go(func() { r.look(ctx, wake) })
	r.lease(ctx, hard)
	loops.Wait()

	drained := time.AfterFunc(r.cfg.DrainTimeout, cancel)
	defer drained.Stop()
	r.stopAll(hard)
	r.leave(hard)
	return nil
}

// look wakes the workers whose shards have rows: after each signal, and at each PollInterval.
func (r *Relay) look(ctx context.Context, wake <-chan struct{}) {
	poll := time.NewTicker(r.cfg.PollInterval)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-r.nudge:
		case <-poll.C:
		}
		held := r.held()
		if len(held) == 0 {
			continue
		}
		var pending []int16
		rows, err := r.pool.Query(ctx, r.sql.pending, held)
		if err == nil {
			pending, err = pgx.CollectRows(rows, pgx.RowTo[int16])
		}
		if err != nil {
			if ctx.Err() == nil {
				r.cfg.Logger.WarnContext(ctx, "look for events", "error", err)
			}
			continue
		}
		r.mu.Lock()
		for _, s := range pending {
			if w := r.workers[s]; w != nil {
				signal(w.wake)
			}
		}
		r.mu.Unlock()
	}
}
