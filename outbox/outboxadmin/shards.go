package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	maxShards = 256
	// fenceTTL is how long producers are refused after a change of shards has died.
	fenceTTL = 15 * time.Second
	// switchTimeout bounds the switch, which moves all failed events.
	switchTimeout = 10 * time.Minute
	// shardsPoll is how often a change looks whether it can go on.
	shardsPoll = 50 * time.Millisecond
)

// ErrShardsChanging is wrapped by ChangeShards' error when another change is going on.
var ErrShardsChanging = errors.New("the number of shards is being changed by another session")

// Shards returns the number of shards.
func Shards(ctx context.Context, db pgtx.DB, schema string) (n int, err error) {
	err = administer(ctx, db, schema, "read the outbox's layout", func(ctx context.Context, tx pgx.Tx, schema string) error {
		l, err := store.ReadLayout(ctx, tx, schema)
		n = l.Shards
		return err
	})
	return n, err
}

// ChangeShards changes the number of shards, 1 to 256, while producers and relays run. Producers are refused meanwhile:
// their statement fails with SQLSTATE 55006, and the transaction is to be repeated. Relays must run, because what is in
// the outbox has to be published first. ChangeShards waits for that until ctx ends. If it fails or dies before the number has
// changed, producers go on within 15 s. After the change, ctx interrupts nothing: relays have to learn of the new number before
// producers go on. If that fails, the error says so; then call it again with the same n. progress is told each step in words.
// ChangeShards is for the owner of the tables.
func ChangeShards(ctx context.Context, pool *pgxpool.Pool, schema string, n int, progress func(text string)) error {
	if n < 1 || n > maxShards {
		return fmt.Errorf("change shards: %d is not a number of shards: want 1 to %d", n, maxShards)
	}
	if pool.Config().MaxConns < 2 {
		return errors.New("change shards: the pool's MaxConns is 1: want 2 or more")
	}
	if progress == nil {
		progress = func(string) {}
	}
	// A transaction of its own for the lock only, which ends with the session: it must not touch the tables.
	changed := false
	err := administer(ctx, pool, schema, "change shards", func(locked context.Context, lock pgx.Tx, schema string) error {
		// It is idle for as long as the change takes.
		if _, err := lock.Exec(locked, `set local idle_in_transaction_session_timeout = 0`); err != nil {
			return err
		}
		var free bool
		if err := lock.QueryRow(locked, `select pg_try_advisory_xact_lock(hashtextextended($1 || '.outbox_layout', 0))`, schema).Scan(&free); err != nil {
			return err
		}
		if !free {
			return ErrShardsChanging
		}
		c := &change{db: pool, schema: schema, to: n, progress: progress}
		var l store.Layout
		if err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			l, err = store.ReadLayout(ctx, tx, schema)
			return err
		}); err != nil {
			return err
		}
		c.from = l.Shards
		if l.Shards == n && l.Rows == n && l.InFunction == n && l.Sequences == n {
			if l.Fenced { // the former change ended before its last step
				err := c.finish(ctx)
				changed = err == nil
				return err
			}
			progress(fmt.Sprintf("there are %d shards already", n))
			return nil
		}
		if err := c.refusePaused(ctx); err != nil {
			return err
		}
		err := c.run(ctx)
		changed = err == nil
		return err
	})
	if changed {
		err = nil // the lock's transaction has nothing to commit, and cannot after ctx has ended
	}
	return err
}
