package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

const paymentMade = "payment.made"

// payment is a client's request. With its ID it is also the answer, and the payload of payment.made.
type payment struct {
	ID      string `json:"id,omitempty"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

//go:embed schema.sql
var schemaSQL string

// api serves POST /payments.
func api(ctx context.Context, p *stage.Part) error {
	o, err := parse(p.Args, io.Discard)
	if err != nil {
		return err
	}
	disconnect, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: p.Schema})
	if err != nil {
		return err
	}
	notifier, err := outbox.NewNotifier(p.Pool, outbox.NotifierConfig{Schema: p.Schema, Logger: p.Log})
	if err != nil {
		return err
	}
	keys, err := idempotencykey.New(p.Pool, idempotencykey.Config{Service: "payments", Scope: idempotencykey.Shared, Schema: p.Schema, Logger: p.Log})
	if err != nil {
		return err
	}
	pay := http.Handler(till{p: p, events: events})
	if o.without != "key" {
		pay = keys.Middleware(pay)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", pay)
	return stage.Together(ctx, notifier.Run, func(ctx context.Context) error { return stage.Serve(ctx, p.Addresses[p.Number], mux) })
}

// till is an ordinary handler: it knows neither keys nor stored answers.
type till struct {
	p      *stage.Part
	events message.Publisher
}

func (t till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var wanted payment
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil || wanted.Account == "" || wanted.Cents <= 0 {
		http.Error(w, `want {"account": "…", "cents": 1 or more}`, http.StatusUnprocessableEntity)
		return
	}
	made, err := t.pay(r.Context(), wanted, r.Header.Get("Idempotency-Key"))
	if err != nil {
		t.p.Log.ErrorContext(r.Context(), "pay", "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(made)
}

// pay writes the payment and its event. Run joins the middleware's transaction, so both are committed with the answer. Without the
// middleware, Run makes a transaction of its own.
func (t till) pay(ctx context.Context, made payment, key string) (answer []byte, err error) {
	made.ID = outbox.NewID()
	if answer, err = json.Marshal(made); err != nil {
		return nil, err
	}
	return answer, pgtx.Run(ctx, t.p.Pool, func(ctx context.Context, tx pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, outbox.NewID(), answer)
		transport.SetKey(msg, made.Account) // the payments of an account keep their order
		_, err := tx.Exec(ctx, `insert into payments (id, event_id, client_key, account, cents) values ($1, $2, $3, $4, $5)`,
			made.ID, msg.UUID, key, made.Account, made.Cents)
		if err != nil {
			return err
		}
		return t.events.Publish(t.p.Topic(paymentMade), msg)
	})
}

// relay publishes committed events to the broker.
func relay(ctx context.Context, p *stage.Part) error {
	disconnect, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	return p.Relay(ctx)
}
