// Package redisclaim is a claim.Store in Redis. While a handler runs, it holds a lock with a random token that identifies the
// holder, and extends it with a heartbeat. Afterwards it sets a marker that the event is completed.
//
// Without a record (Config.Record is nil), the store detects duplicates within Config.Retention, and guarantees at least once only.
// Redis does not commit together with the handler's work. So an effect, and the messages that the handler returned, may be
// repeated:
//   - if a process dies, or Redis cannot be reached, after the effect and before the marker is set;
//   - if a holder loses its lock while it works. Its context then ends with ErrLockLost, and it can neither complete nor release the
//     other holder's lock, but its work is done;
//   - if Redis loses a lock or a marker: by a failover to a replica that did not have it yet, by a restart without "appendfsync
//     always", or by an eviction of maxmemory-policy;
//   - if the event is delivered again after the marker's end.
//
// It never loses an effect: an event that is not known to be completed runs again. Make handlers repeatable, or set a record.
//
// With a record (claim.NewPostgresStore), Redis keeps only locks, so that concurrent duplicates do not occupy connections of the
// database. The record alone decides what happens once, so its guarantee holds whatever Redis loses. Without Redis, events are
// claimed without the lock. There is no marker, because it could become wrong: if a failover of the database loses a commit, or if
// an operator replays the event.
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

// ErrLockLost means that a handler ran longer than its lock was certain, so another consumer may have run the same event. It is the
// cause of the handler's context (context.Cause), and Do's error wraps it. Let the event be delivered again.
var ErrLockLost = errors.New("the lock in Redis is no longer this holder's")

const (
	minTTL = 100 * time.Millisecond
	// maxPatience bounds the wait for an answer of Redis that only delays the event. Every wait is also at most a third of the
	// lock's TTL.
	maxPatience = 2 * time.Second
	// awayFor is how long events are claimed without the lock after a failed call to Redis.
	awayFor = time.Second
)

// Config configures a Store. The zero value is valid for handlers that return no messages.
type Config struct {
	// TTL is how long a lock remains after its holder has died. A handler may run much longer, because the lock is extended every
	// TTL/3. 100 ms or more. Default: 30 s.
	TTL time.Duration

	// Retention is how long a store without a record remembers a completed event. It must be at least as long as the broker may
	// redeliver. TTL or more. Default: 24 h.
	Retention time.Duration

	// Prefix is the start of every key, before the names of the service and the consumer. If deployments of a service share only
	// Redis, each needs its own prefix. Default: "millrace".
	Prefix string

	// Publisher sends the messages that handlers return, in a store without a record: after the handler has succeeded and before
	// the event is marked as completed. If the event runs again, they are sent again. The caller still owns the publisher. Default:
	// none.
	Publisher message.Publisher

	// Record is the store that decides what happens once, such as claim.NewPostgresStore(pool). Default: nil, no record.
	Record claim.Store

	// Logger logs lost locks, and that Redis does not answer, as warnings. Default: slog.Default().
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

// validate reports every error. Call it after withDefaults.
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

// validateClient refuses a client that ignores the context's deadline: a lock could end before an unanswered call does.
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

// Store keeps claims in Redis. Each claim is one key, so a cluster works too. It is safe for concurrent use. It starts a goroutine
// for each running handler, which ends with the handler.
type Store struct {
	client   redis.UniversalClient
	cfg      Config
	patience time.Duration
	away     atomic.Int64 // next use of Redis after a failed call, in Unix nanoseconds; only with a record
}

var _ claim.Store = (*Store)(nil)

// New returns a store in the client's Redis, 6.0 or later. The caller still owns the client. The client's
// Options.ContextTimeoutEnabled must be set.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(validateClient(client), cfg.validate()); err != nil {
		return nil, fmt.Errorf("redisclaim: %w", err)
	}
	return &Store{client: client, cfg: cfg, patience: min(cfg.TTL/3, maxPatience)}, nil
}

// Unwrap returns the record, or nil.
func (s *Store) Unwrap() claim.Store { return s.cfg.Record }

// Do runs fn while it holds the event's lock, inside the record if there is one. A store without a record ends fn's context with
// the cause ErrLockLost when the lock may belong to another holder. Do's error wraps ErrLockLost if the event could not be marked
// as completed for that reason. An error after fn has succeeded means that the event is redelivered although its effect has
// happened.
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
	// Ask Redis, even if the lock has ended by our own clock: if our token is still there, no other holder has the event.
	if err := s.publish(ctx, l, staged); err != nil {
		return err
	}
	stop()
	return l.complete(ctx)
}

// guard holds the lock around the record's Do while Redis answers.
func (s *Store) guard(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) error {
	if time.Now().UnixNano() < s.away.Load() {
		return s.cfg.Record.Do(ctx, key, fn)
	}
	l, err := s.acquire(ctx, key)
	defer l.release(ctx)
	switch {
	// ErrCompleted: from a time when the store had no record.
	case errors.Is(err, claim.ErrContended) || errors.Is(err, claim.ErrCompleted), err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		s.away.Store(time.Now().Add(awayFor).UnixNano())
		s.cfg.Logger.WarnContext(ctx, "Redis does not answer, events are claimed without its lock", "error", err)
		return s.cfg.Record.Do(ctx, key, fn)
	}
	// A lost lock does not stop fn: the record refuses the next holder while fn runs, and after it has completed.
	defer l.keep(ctx, func() {})()
	return s.cfg.Record.Do(ctx, key, fn)
}
