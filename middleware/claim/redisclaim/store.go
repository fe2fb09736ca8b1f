// Package redisclaim is a claim.Store that keeps its claims in Redis: a lock while a handler runs, with a random token by
// which it is known to be its holder's, extended by a heartbeat; and afterwards a marker that the event is completed.
//
// Alone (Config.Record is nil) it absorbs duplicates within Config.Retention, and it promises at least once, no more.
// Nothing in Redis commits together with what a handler does, so an effect, and the messages that the handler returned,
// may happen again:
//   - when a process dies, or Redis cannot be reached, after the effect and before the marker is set;
//   - when a holder loses its lock while it works. Its context ends then with ErrLockLost, and it can neither complete nor
//     release what is another's; but what it did is done;
//   - when Redis loses a lock or a marker: a failover to a replica that did not have it yet, a restart without
//     "appendfsync always", an eviction by maxmemory-policy;
//   - when the event is delivered again after the marker's end.
//
// It never loses an effect: what is not known to be completed runs again. Let handlers be repeatable, or
// put the store in front of a record.
//
// In front of a record (claim.NewPostgresStore), Redis keeps locks only: they keep duplicates that arrive together from
// occupying connections of the database. The record alone decides what happens once, so its promise holds whatever Redis
// loses, and without Redis too: then events are claimed without the lock. There is no marker, because it could outlive
// what it says: a commit that a failover of the database lost, or an event that an operator has replayed.
package redisclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/middleware/claim"
)

// ErrLockLost means that a handler ran longer than its lock was sure to be its own: another consumer may have run the
// same event meanwhile. It is the cause of the handler's context (context.Cause) and wrapped by Do's error. Have the event
// delivered again.
var ErrLockLost = errors.New("the lock in Redis is no longer this holder's")

const (
	minTTL = 100 * time.Millisecond
	// maxPatience bounds the wait for an answer where that only delays the event; otherwise, as in every case, it is a
	// third of the lock's TTL.
	maxPatience = 2 * time.Second
	// awayFor is how long events are claimed without the lock after Redis could not be reached, before it is asked again.
	awayFor = time.Second
)

// Config configures a Store. Its zero value is ready for use with handlers that return no messages.
type Config struct {
	// TTL is how long a lock outlives its holder. A handler may run much longer: the lock is extended at every third of
	// it. 100 ms or more. Default: 30 s.
	TTL time.Duration

	// Retention is how long a completed event is known, for a store that stands alone: at least as long as the broker
	// may deliver it again. TTL or more. Default: 24 h.
	Retention time.Duration

	// Prefix begins every key, before the name of the service and the consumer. Deployments of a service that share a Redis
	// and nothing else need a prefix each. Default: "millrace".
	Prefix string

	// Publisher sends the messages that handlers return, for a store that stands alone: after the handler has succeeded
	// and before the event is marked as completed. They go out again when the event runs again. It stays the caller's.
	Publisher message.Publisher

	// Record is the store that decides what happens once, such as claim.NewPostgresStore(pool). Default: nil, the store
	// stands alone.
	Record claim.Store

	// Logger gets lost locks and a Redis that does not answer, as warnings. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.TTL == 0 {
		c.TTL = 30 * time.Second
	}
	if c.Retention == 0 {
		c.Retention = 24 * time.Hour
	}
	if c.Prefix == "" {
		c.Prefix = "millrace"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate is asked after withDefaults.
func (c Config) validate() error {
	var errs []error
	if c.TTL < minTTL {
		errs = append(errs, fmt.Errorf("Config.TTL is %v: want %v or more, or 0 for the default", c.TTL, minTTL))
	}
	if c.Retention < c.TTL {
		errs = append(errs, fmt.Errorf("Config.Retention is %v: want at least Config.TTL, %v, or 0 for the default", c.Retention, c.TTL))
	}
	if c.Record != nil && c.Publisher != nil {
		errs = append(errs, errors.New("Config.Publisher is set beside Config.Record, which stages the messages itself: want one of them"))
	}
	return errors.Join(errs...)
}

// validateClient refuses a client that waits for its own timeouts: a lock would end before an unanswered call does.
func validateClient(client redis.UniversalClient) error {
	var heeds bool
	switch c := client.(type) {
	case nil:
		return errors.New("client is nil: want a client of go-redis, such as redis.NewClient(options)")
	case *redis.Client:
		heeds = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		heeds = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		heeds = c.Options().ContextTimeoutEnabled
	default:
		return nil
	}
	if !heeds {
		return errors.New("the client's Options.ContextTimeoutEnabled is false: want true, for a client that ignores deadlines can lose a lock without noticing")
	}
	return nil
}

// Store keeps claims in Redis, one key for each, so a cluster will do. It is safe for concurrent use. It starts a
// goroutine for each running handler, which ends with it, and keeps none.
type Store struct {
	client   redis.UniversalClient
	cfg      Config
	patience time.Duration
	away     atomic.Int64 // when Redis is asked again, in Unix nanoseconds; only in front of a record
}

var _ claim.Store = (*Store)(nil)

// New returns a store on the client's Redis, 6.0 or later. The client stays the caller's; its
// Options.ContextTimeoutEnabled must be set.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(validateClient(client), cfg.validate()); err != nil {
		return nil, fmt.Errorf("redisclaim: %w", err)
	}
	return &Store{client: client, cfg: cfg, patience: min(cfg.TTL/3, maxPatience)}, nil
}

// Unwrap returns the record behind the store, nil when it stands alone.
func (s *Store) Unwrap() claim.Store { return s.cfg.Record }

// Do runs fn while it holds the event's lock, inside the record where there is one. A store that stands alone ends fn's
// context with the cause ErrLockLost once the lock may be another's; its error wraps ErrLockLost when the event could
// therefore not be marked as completed. An error after fn has succeeded means that the event comes back although its
// effect has happened.
func (s *Store) Do(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) error {
	if s.cfg.Record != nil {
		return s.guard(ctx, key, fn)
	}
	l, err := s.acquire(ctx, key)
	defer l.release(ctx)
	if err != nil {
		return err
	}
	staged := &outputs{}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, outputsKey{s}, staged))
	defer cancel(nil)
	stop := l.keep(ctx, func() { cancel(ErrLockLost) })
	defer stop()
	if err := fn(ctx); err != nil {
		if lost := context.Cause(ctx); errors.Is(lost, ErrLockLost) && !errors.Is(err, ErrLockLost) {
			err = fmt.Errorf("%w: %w", ErrLockLost, err)
		}
		return err
	}
	// Whatever its own clock says of the lock, Redis is asked: an event whose token is still there is nobody else's.
	if err := s.publish(ctx, l, staged); err != nil {
		return err
	}
	stop()
	return l.complete(ctx)
}

// guard holds the lock around the record, as long as Redis has it.
func (s *Store) guard(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) error {
	if time.Now().UnixNano() < s.away.Load() {
		return s.cfg.Record.Do(ctx, key, fn)
	}
	l, err := s.acquire(ctx, key)
	defer l.release(ctx)
	switch {
	// Completed: the store stood alone when it was.
	case errors.Is(err, claim.ErrContended) || errors.Is(err, claim.ErrCompleted), err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		s.away.Store(time.Now().Add(awayFor).UnixNano())
		s.cfg.Logger.WarnContext(ctx, "Redis does not answer, events are claimed without its lock", "error", err)
		return s.cfg.Record.Do(ctx, key, fn)
	}
	// A lost lock does not stop fn: the record refuses the next holder while fn runs, and once it has completed.
	defer l.keep(ctx, func() {})()
	return s.cfg.Record.Do(ctx, key, fn)
}
