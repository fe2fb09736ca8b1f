package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// businessSQL makes the tables that the auditor reads. No unique constraint stands on what must happen once: a double must
// show.
const businessSQL = `
create table accounts (account text primary key, version bigint not null);
create table orders (id uuid not null, event_id text not null, client_key text not null, account text not null,
	version bigint not null, at timestamptz not null default clock_timestamp());
create table shipments (id bigint generated always as identity, order_id uuid not null, event_id text not null,
	account text not null, version bigint not null, at timestamptz not null default clock_timestamp());
create table notices (id bigint generated always as identity, order_id uuid not null, account text not null,
	version bigint not null, at timestamptz not null default clock_timestamp());
create table foreign_work (at timestamptz not null default clock_timestamp());`

// order is what a client asks for; with ID and version the answer, and the payload of both events.
type order struct {
	ID      string `json:"id,omitempty"`
	Account string `json:"account"`
	Version int64  `json:"version,omitempty"` // counts the orders of the account
	HoldMS  int64  `json:"hold_ms,omitempty"` // how long each transaction stays open after it has published
}

// service serves POST /orders.
func (p *part) service(ctx context.Context) error {
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return err
	}
	notifier, err := outbox.NewNotifier(p.pool, outbox.NotifierConfig{Schema: schema, Logger: p.log})
	if err != nil {
		return err
	}
	keys, err := idempotencykey.New(p.pool, idempotencykey.Config{
		Service: "chaos", Scope: idempotencykey.Shared, Schema: schema, Timeout: handlerTimeout, Logger: p.log,
	})
	if err != nil {
		return err
	}
	place := http.Handler(till{p, events})
	if p.Without != "key" {
		place = keys.Middleware(place)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", place)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Addresses[p.Number])
	if err != nil {
		return err
	}
	p.works()
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return notifier.Run(gctx) })
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(gctx), handlerTimeout)
		defer cancel()
		return server.Shutdown(ctx)
	})
	return g.Wait()
}

type till struct {
	p      *part
	events message.Publisher
}

func (t till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var wanted order
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil || wanted.Account == "" {
		http.Error(w, `want {"account": "…"}`, http.StatusUnprocessableEntity)
		return
	}
	answer, err := t.place(r.Context(), wanted, r.Header.Get("Idempotency-Key"))
	if err != nil {
		t.p.log.WarnContext(r.Context(), "place", "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer)
}

// place writes the order and its event. The account's row is locked until the commit, so that its orders have an order.
func (t till) place(ctx context.Context, o order, key string) (answer []byte, err error) {
	o.ID = outbox.NewID()
	err = pgtx.Run(ctx, t.p.pool, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `insert into accounts as a (account, version) values ($1, 1)
			on conflict (account) do update set version = a.version + 1 returning version`, o.Account).Scan(&o.Version)
		if err != nil {
			return err
		}
		if answer, err = json.Marshal(o); err != nil {
			return err
		}
		msg := t.p.event(ctx, o, answer)
		if _, err := tx.Exec(ctx, `insert into orders (id, event_id, client_key, account, version) values ($1, $2, $3, $4, $5)`,
			o.ID, msg.UUID, key, o.Account, o.Version); err != nil {
			return err
		}
		if t.p.Without == "transaction" {
			err = pgtx.Run(pgtx.Detached(ctx), t.p.pool, func(ctx context.Context, _ pgx.Tx) error {
				msg.SetContext(ctx)
				return t.events.Publish(placed, msg)
			})
		} else {
			err = t.events.Publish(placed, msg)
		}
		if err != nil {
			return err
		}
		return o.hold(ctx)
	})
	return answer, err
}

func (p *part) event(ctx context.Context, o order, payload []byte) *message.Message {
	msg := message.NewMessageWithContext(ctx, outbox.NewID(), payload)
	if p.Without != "order" {
		transport.SetKey(msg, o.Account)
	}
	return msg
}

// hold keeps the transaction open after its writes.
func (o order) hold(ctx context.Context) error {
	if o.HoldMS == 0 {
		return nil
	}
	if err := pgtx.Flush(ctx); err != nil {
		return err
	}
	return pause(ctx, time.Duration(o.HoldMS)*time.Millisecond)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
