package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

const (
	serviceName = "bench"
	// handlerName is the router's name of the handler, and claimName that of its consumer in the claim's tables.
	handlerName = "bench"
	claimName   = serviceName + "/" + handlerName
)

// slowHandler is how long a handler takes that does more than one statement.
const slowHandler = 5 * time.Millisecond

var errNoTransaction = errors.New("the context carries no transaction")

// exec is the ordinary handler: it executes its statement in the transaction that the middleware began.
func (a accounts) exec(msg *message.Message) error {
	tx, ok := pgtx.From(msg.Context())
	if !ok {
		return errNoTransaction
	}
	account, err := accountOf(msg)
	if err != nil {
		return err
	}
	_, err = tx.Exec(msg.Context(), a.update(), account)
	return err
}

// queue is the handler that needs no answer: its statement is sent together with COMMIT.
func (a accounts) queue(msg *message.Message) error {
	account, err := accountOf(msg)
	if err != nil {
		return err
	}
	return pgtx.Queue(msg.Context(), a.update(), account)
}

// autocommit is the handler of a service that has no transaction around it.
func (a accounts) autocommit(pool *pgxpool.Pool) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		account, err := accountOf(msg)
		if err != nil {
			return err
		}
		_, err = pool.Exec(msg.Context(), a.update(), account)
		return err
	}
}

// slow is a handler that takes its time.
func slow(h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if !wait.For(msg.Context(), slowHandler) {
			return context.Cause(msg.Context())
		}
		return h(msg)
	}
}

var errFirstAttempt = errors.New("the first attempt fails")

// failing is a handler whose first attempt fails for one event in that many.
func failing(oneIn int, h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		account, err := accountOf(msg)
		if err != nil {
			return err
		}
		if account%oneIn == 0 && transport.DeliveryFrom(msg.Context()).Attempt() == 1 {
			return errFirstAttempt
		}
		return h(msg)
	}
}

// claimed is Millrace's claim with its PostgreSQL store.
func claimed(pool *pgxpool.Pool, schema string, cfg claim.Config) func() (message.HandlerMiddleware, error) {
	return func() (message.HandlerMiddleware, error) {
		cfg.Service = serviceName
		c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), cfg)
		if err != nil {
			return nil, err
		}
		return c.Middleware, nil
	}
}

// deduplicated is Watermill's Deduplicator, which keeps the events' IDs in memory. Its own hash, 32 bits of the payload,
// would take one event for another. Its own repository is a map behind a mutex like this one, and a goroutine without an end.
func deduplicated() (message.HandlerMiddleware, error) {
	return (&middleware.Deduplicator{
		KeyFactory: func(msg *message.Message) (string, error) { return msg.UUID, nil },
		Repository: &seen{keys: map[string]struct{}{}},
		Timeout:    time.Second,
	}).Middleware, nil
}

// seen is an ExpiringKeyRepository that forgets nothing.
type seen struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

// IsDuplicate marks the key.
func (s *seen) IsDuplicate(_ context.Context, key string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, duplicate := s.keys[key]
	s.keys[key] = struct{}{}
	return duplicate, nil
}
