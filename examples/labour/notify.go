package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/pgtx"
)

// texts is the SMS provider. It honours no keys: two calls send two texts.
type texts struct {
	mu   sync.Mutex
	sent map[string]int // by phone
}

func (t *texts) send(phone string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent[phone]++
}

func (t *texts) to(phone string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent[phone]
}

// router is the notification service.
func (s *scene) router() (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(s.p.Log))
	if err != nil {
		return nil, err
	}
	store := claim.NewPostgresStore(s.p.Pool, claim.Schema(s.p.Schema))
	c, err := claim.New(store, claim.Config{Service: "labour", Logger: s.p.Log, Backoff: func(int) time.Duration { return 100 * time.Millisecond }})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("notify-family-%d", s.id)
	sub, err := s.p.Subscriber(name, s.name, 4)
	if err != nil {
		return nil, err
	}
	guard := map[guard]message.HandlerMiddleware{claimed: c.Middleware, unguarded: s.inTransaction, looksFirst: s.lookFirst}[s.ways.guard]
	h := router.AddConsumerHandler(name, s.topic(), c.Subscriber(name, sub), s.notifyFamily)
	h.AddMiddleware(s.count, guard, s.ledger.Middleware)
	return router, nil
}

// notifyFamily writes a notification for each subscriber in the transaction of its context, and sends the text.
func (s *scene) notifyFamily(msg *message.Message) error {
	var e completed
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return claim.Permanent(err)
	}
	ctx := msg.Context()
	tx, ok := pgtx.From(ctx)
	if !ok {
		return errors.New("no transaction in the context")
	}
	s.meet(ctx)
	text := fmt.Sprintf("Welcome, baby! %s's labour is completed, after %d contractions.", e.Mother, e.Contractions)
	rows, err := tx.Query(ctx, `insert into notifications (labour_id, phone, text) select labour_id, phone, $2 from subscribers
		where labour_id = $1 returning phone`, e.LabourID, text)
	if err != nil {
		return err
	}
	phones, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, phone := range phones {
		if !s.ways.ledger {
			s.texts.send(phone)
			continue
		}
		if err := effect.Once(ctx, "sms:"+msg.UUID+phone, func(context.Context, string) error { s.texts.send(phone); return nil }); err != nil {
			return err
		}
	}
	return s.behindTheText()
}

// inTransaction is a consumer that treats every delivery as a new event.
func (s *scene) inTransaction(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, pgtx.Run(context.WithoutCancel(msg.Context()), s.p.Pool, func(ctx context.Context, _ pgx.Tx) error {
			msg.SetContext(ctx)
			_, err := h(msg)
			return err
		})
	}
}

// lookFirst is a consumer that checks whether it has seen the event, handles it, and records it. Two such consumers may both check before
// one of them handles it.
func (s *scene) lookFirst(h message.HandlerFunc) message.HandlerFunc {
	handle := s.inTransaction(h)
	return func(msg *message.Message) ([]*message.Message, error) {
		seen := false
		if err := s.p.Pool.QueryRow(msg.Context(), `select exists (select from seen where event_id = $1)`, msg.UUID).Scan(&seen); err != nil || seen {
			return nil, err
		}
		ctx := msg.Context()
		s.arrived.Add(1)
		if _, err := handle(msg); err != nil {
			return nil, err
		}
		_, err := s.p.Pool.Exec(ctx, `insert into seen (event_id) values ($1)`, msg.UUID)
		return nil, err
	}
}

// count is outside of the guard. A consumer that checks first has arrived after its check.
func (s *scene) count(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if s.ways.guard != looksFirst {
			s.arrived.Add(1)
		}
		defer s.finished.Add(1)
		return h(msg)
	}
}
