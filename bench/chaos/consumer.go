package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// consumer ships orders and tells their customers.
func (p *part) consumer(ctx context.Context) error {
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return err
	}
	notifier, err := outbox.NewNotifier(p.pool, outbox.NotifierConfig{Schema: schema, Logger: p.log})
	if err != nil {
		return err
	}
	guard, err := claim.New(claim.NewPostgresStore(p.pool, claim.Schema(schema)), claim.Config{
		Service: "chaos", Ordered: p.Without != "order", HandlerTimeout: handlerTimeout, Logger: p.log,
	})
	if err != nil {
		return err
	}
	ledger, err := effect.New(p.pool, effect.Config{
		Service: "chaos", Schema: schema, CallTimeout: handlerTimeout / 4, Settle: handlerTimeout / 10, RetryAfter: handlerTimeout / 5, Logger: p.log,
	})
	if err != nil {
		return err
	}
	defer ledger.Close()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: handlerTimeout}, watermill.NewSlogLogger(p.log))
	if err != nil {
		return err
	}
	router.AddMiddleware(p.worksWith)
	w := worker{p: p, events: events}
	if p.Without == "staging" {
		if w.events, err = p.broker.Publisher(); err != nil {
			return err
		}
	}
	for _, h := range []struct {
		name, topic string
		handle      message.NoPublishHandlerFunc
	}{{"ship", placed, w.ship}, {"notify", shipped, w.notify}} {
		sub, err := p.broker.Subscriber(transport.SubscriberConfig{
			Consumer: h.name, Concurrency: claim.Concurrency(p.pool, 2), Ordered: p.Without != "order",
		})
		if err != nil {
			return err
		}
		if p.Without == "claim" {
			router.AddConsumerHandler(h.name, h.topic, sub, w.unclaimed(h.handle)).AddMiddleware(ledger.Middleware)
			continue
		}
		handler := router.AddConsumerHandler(h.name, h.topic, guard.Subscriber(h.name, sub), h.handle)
		if p.Without == "ack" {
			handler.AddMiddleware(ackFirst)
		}
		handler.AddMiddleware(guard.Middleware, ledger.Middleware)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return guard.Run(ctx) })
	g.Go(func() error { return ledger.Run(ctx) })
	g.Go(func() error { return notifier.Run(ctx) })
	g.Go(func() error { return router.Run(ctx) })
	return g.Wait()
}

// worksWith takes the first message that is handled as the sign that all has begun.
func (p *part) worksWith(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := h(msg)
		if err == nil {
			p.works()
		}
		return out, err
	}
}

type worker struct {
	p      *part
	events message.Publisher
}

// unclaimed is the handler in a transaction, as one writes it without Millrace.
func (w worker) unclaimed(handle message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		return pgtx.Run(msg.Context(), w.p.pool, func(ctx context.Context, _ pgx.Tx) error {
			inside := msg.Copy()
			inside.SetContext(ctx)
			return handle(inside)
		})
	}
}

// ackFirst lets a message be acked before its handler has run.
func ackFirst(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		later := msg.Copy()
		later.SetContext(context.WithoutCancel(msg.Context()))
		go h(later) //nolint:errcheck // nobody looks: that is what is wrong with it
		return nil, nil
	}
}

// ship writes the shipment and publishes the follow-up.
func (w worker) ship(msg *message.Message) error {
	o, tx, err := open(msg)
	if err != nil {
		return err
	}
	ctx := msg.Context()
	next := w.p.event(ctx, o, msg.Payload)
	const insert = `insert into shipments (order_id, event_id, account, version) values ($1, $2, $3, $4)`
	args := []any{o.ID, next.UUID, o.Account, o.Version}
	if w.p.Without == "unit" {
		_, err = w.p.pool.Exec(pgtx.Detached(ctx), insert, args...)
	} else {
		_, err = tx.Exec(ctx, insert, args...)
	}
	if err != nil {
		return err
	}
	if err := w.events.Publish(shipped, next); err != nil {
		return err
	}
	return o.hold(ctx)
}

// notify has an effect at the provider and writes that down.
func (w worker) notify(msg *message.Message) error {
	o, tx, err := open(msg)
	if err != nil {
		return err
	}
	ctx := msg.Context()
	if w.p.Without == "ledger" {
		err = w.charge(ctx, http.MethodPost, o, "")
	} else {
		err = effect.Once(ctx, "charge:"+o.ID, func(ctx context.Context, key string) error {
			return w.charge(ctx, http.MethodPost, o, key)
		}, effect.Reconcile(func(ctx context.Context, i effect.Intent) (effect.Outcome, error) {
			switch err := w.charge(ctx, http.MethodGet, o, i.IdempotencyKey); {
			case errors.Is(err, errNoCharge):
				return effect.WasNotDone(), nil
			case err != nil:
				return effect.Unknown(), err
			}
			return effect.WasDone(nil), nil
		}))
	}
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, `insert into notices (order_id, account, version) values ($1, $2, $3)`, o.ID, o.Account, o.Version); err != nil {
		return err
	}
	return o.hold(ctx)
}

func open(msg *message.Message) (o order, tx pgx.Tx, err error) {
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return o, nil, claim.Permanent(err)
	}
	tx, ok := pgtx.From(msg.Context())
	if !ok {
		return o, nil, errors.New("no transaction in the context")
	}
	return o, tx, nil
}

var errNoCharge = errors.New("the provider knows no such charge")

// charge asks the provider to charge for the order, or whether it has.
func (w worker) charge(ctx context.Context, method string, o order, key string) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.p.Provider+"/charges/"+o.ID, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set(keyHeader, key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode == http.StatusNotFound:
		return errNoCharge
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("the provider answered %d", res.StatusCode)
	}
	return nil
}
