package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// lease keeps this relay's shards leased until ctx ends, at intervals of its own, whatever the shards' work does. It
// starts a worker for each shard that it got and stops those of shards that it lost or holds beyond its fair share.
func (r *Relay) lease(ctx, hard context.Context) {
	var until time.Time // by our own clock, from before the server's: earlier than the lease in the database
	for ctx.Err() == nil {
		started := time.Now()
		held, fair, err := r.takeLeases(ctx)
		switch {
		case err == nil:
			until = started.Add(r.cfg.LeaseTTL)
			r.apply(hard, held, fair)
		case ctx.Err() != nil:
			return
		default:
			r.cfg.Logger.WarnContext(ctx, "renew the leases of the outbox's shards", "error", err)
			if time.Now().After(until) {
				r.apply(hard, nil, 0) // others may have taken them
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.cfg.LeaseTTL / 4):
		}
	}
}

func (r *Relay) takeLeases(ctx context.Context) (held []int16, fair int, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL/4)
	defer cancel()
	ttl := r.cfg.LeaseTTL.Seconds()
	err = r.transact(ctx, func(b *pgx.Batch) {
		b.Queue(r.sql.seen, r.id, ttl)
		b.Queue(r.sql.take, r.id, ttl, r.held()).QueryRow(func(row pgx.Row) error { return row.Scan(&fair, &held) })
	})
	return held, fair, err
}

// held returns the shards that have a worker, also those whose worker is finishing its last batch.
func (r *Relay) held() []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	shards := make([]int16, 0, len(r.workers)) // never nil, which would be NULL
	for s := range r.workers {
		shards = append(shards, s)
	}
	slices.Sort(shards)
	return shards
}

// apply makes the workers match the leases.
func (r *Relay) apply(hard context.Context, held []int16, fair int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for shard, w := range r.workers {
		if !slices.Contains(held, shard) {
			w.cancel()
			delete(r.workers, shard)
		}
	}
	for _, shard := range held {
		if r.workers[shard] == nil {
			r.workers[shard] = r.startWorker(hard, shard)
		}
	}
	surplus := len(held) - fair
	for shard, w := range r.workers {
		if surplus <= 0 {
			break
		}
		surplus--
		if w.stopping() {
			continue
		}
		w.stop()
		r.ending.Go(func() {
			<-w.done
			r.giveBack(hard, shard, w)
		})
	}
}

// giveBack ends the lease of a shard whose worker has stopped, so that another relay need not wait for its expiry.
func (r *Relay) giveBack(ctx context.Context, shard int16, w *worker) {
	r.mu.Lock()
	ours := r.workers[shard] == w
	if ours {
		delete(r.workers, shard)
	}
	r.mu.Unlock()
	if !ours {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL)
	defer cancel()
	if _, err := r.pool.Exec(ctx, r.sql.release, r.id, []int16{shard}); err != nil {
		r.cfg.Logger.WarnContext(ctx, "give a shard of the outbox back", "shard", shard, "error", err)
	}
}

// stopAll lets every worker finish its batch. When hard has ended it waits no longer than a last delete takes: a publisher
// without a context may block for ever, and its goroutine with it.
func (r *Relay) stopAll(hard context.Context) {
	r.mu.Lock()
	for _, w := range r.workers {
		w.stop()
	}
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.ending.Wait()
	}()
	select {
	case <-ended:
		return
	case <-hard.Done():
	}
	select {
	case <-ended:
	case <-time.After(flushTimeout):
		r.cfg.Logger.ErrorContext(hard, "the publisher does not return: what it was given may be published again", "shards", r.held())
	}
}

// leave gives the remaining shards back and takes the relay off the list, so that others take over at once.
func (r *Relay) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.LeaseTTL)
	defer cancel()
	err := r.transact(ctx, func(b *pgx.Batch) {
		b.Queue(r.sql.release, r.id, r.held())
		b.Queue(r.sql.gone, r.id)
	})
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "give the shards of the outbox back", "error", err)
	}
}
