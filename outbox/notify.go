package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

// NotifierConfig configures a Notifier. Its zero value is ready for use.
type NotifierConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string
	// Logger logs notifications that failed; the relays' polls make up for them. Default: slog.Default().
	Logger *slog.Logger
}

// Notifier wakes the relays of other processes after commits in this process. A process that publishes events and runs no relay
// should run a Notifier. Without one, relays find the events at their next poll.
//
// It notifies after the commit, on its own connection, and under load once for many commits. A NOTIFY inside the business
// transaction would hold a cluster-wide lock while the commit is flushed, and so serialize all writers.
type Notifier struct {
	cfg  NotifierConfig
	pool *pgxpool.Pool
}

// NewNotifier returns a notifier for events committed through pool.
func NewNotifier(pool *pgxpool.Pool, cfg NotifierConfig) (*Notifier, error) {
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		err = fmt.Errorf("NotifierConfig.%w", err)
	}
	if pool == nil {
		err = errors.Join(err, errors.New("pool is nil: want the *pgxpool.Pool that events are committed through"))
	}
	if err != nil {
		return nil, fmt.Errorf("outbox notifier: %w", err)
	}
	cfg.Schema = schema
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Notifier{cfg: cfg, pool: pool}, nil
}

// Run notifies until ctx ends, and then returns nil.
func (n *Notifier) Run(ctx context.Context) error {
	commits := wake.New()
	defer wake.Listen(n.cfg.Schema, commits)()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-commits.Signal():
		}
		hashes, all, _ := commits.Take()
		if _, err := n.pool.Exec(ctx, `select pg_notify($1, $2)`, store.Channel(n.cfg.Schema), wake.Payload(hashes, all)); err != nil && ctx.Err() == nil {
			n.cfg.Logger.WarnContext(ctx, "notify the outbox's relays", "error", err)
		}
	}
}

// listen passes notifications to the loop until ctx ends. While it has no connection, or a pooler in transaction mode swallows
// the notifications, the relay's poll finds the events.
func (r *Relay) listen(ctx context.Context) {
	var wait time.Duration
	for ctx.Err() == nil {
		err := store.Listen(ctx, r.pool, r.cfg.Schema, func() {
			wait = 0
			r.wakes.AddLook() // finds events that were committed while no connection listened
		}, r.wakes.AddPayload)
		if ctx.Err() != nil {
			return
		}
		wait = min(max(2*wait, 100*time.Millisecond), 5*time.Second)
		r.cfg.Logger.WarnContext(ctx, "listen for events: polling meanwhile", "retry_in", wait, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}
