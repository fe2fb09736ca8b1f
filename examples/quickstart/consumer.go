package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// consumer runs the two handlers: notify-family, which publishes notification.sent, and say-thanks, which counts it.
func (s *service) consumer(ctx context.Context) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(s.log))
	if err != nil {
		return err
	}
	guard, err := s.guard()
	if err != nil {
		return err
	}
	outputs, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s.cfg.Schema})
	if err != nil {
		return err
	}
	router.AddMiddleware(s.countDeliveries, guard)

	notify, err := s.subscriber("notify-family", labourCompleted)
	if err != nil {
		return err
	}
	thanks, err := s.subscriber("say-thanks", notificationSent)
	if err != nil {
		return err
	}
	s.count("subscribed")
	router.AddHandler("notify-family", s.topic(labourCompleted), notify, s.topic(notificationSent), outputs, s.notifyFamily)
	router.AddConsumerHandler("say-thanks", s.topic(notificationSent), thanks, s.sayThanks)

	notifier, err := outbox.NewNotifier(s.pool, outbox.NotifierConfig{Schema: s.cfg.Schema, Logger: s.log})
	if err != nil {
		return err
	}
	return stage.Together(ctx, notifier.Run, router.Run, s.servePush)
}

// subscriber returns a subscriber after making its subscription, so that the client may start.
func (s *service) subscriber(consumer, topic string) (message.Subscriber, error) {
	sub, err := s.broker.Subscriber(transport.SubscriberConfig{Consumer: s.cfg.Prefix + consumer, Concurrency: claim.Concurrency(s.pool, 2)})
	if err != nil {
		return nil, err
	}
	if i, ok := sub.(message.SubscribeInitializer); ok {
		err = i.SubscribeInitialize(s.topic(topic))
	}
	return sub, err
}

// guard returns the claim or, with -without claim, a plain transaction for each delivery.
func (s *service) guard() (message.HandlerMiddleware, error) {
	store := claim.NewPostgresStore(s.pool, claim.Schema(s.cfg.Schema))
	c, err := claim.New(store, claim.Config{Service: "labour", Logger: s.log})
	if err != nil || s.cfg.Without != "claim" {
		return c.Middleware, err
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			return nil, pgtx.Run(context.WithoutCancel(msg.Context()), s.pool, func(ctx context.Context, _ pgx.Tx) error {
				msg.SetContext(ctx)
				outputs, err := h(msg)
				if err != nil || len(outputs) == 0 {
					return err
				}
				outputs[0].SetContext(ctx)
				return store.Stage(ctx, message.PublishTopicFromCtx(ctx), outputs...)
			})
		}
	}, nil
}

func (s *service) notifyFamily(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	e, tx, err := open(msg)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Welcome, baby! %s's labour is complete.", e.Mother)
	if _, err := tx.Exec(ctx, `insert into notifications (labour_id, event_id, text) values ($1, $2, $3)`, e.LabourID, msg.UUID, text); err != nil {
		return nil, err
	}
	if err := s.sendSMS(ctx, msg.UUID, e.LabourID, text); err != nil {
		return nil, err
	}
	out, err := newMessage(ctx, e)
	return []*message.Message{out}, err
}

func (s *service) sayThanks(msg *message.Message) error {
	e, tx, err := open(msg)
	if err != nil {
		return err
	}
	_, err = tx.Exec(msg.Context(), `update labours set thanks = thanks + 1 where id = $1`, e.LabourID)
	return err
}

// open returns the event, and the transaction for the handler's writes.
func open(msg *message.Message) (event, pgx.Tx, error) {
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return e, nil, err
	}
	ran(msg.Context())
	tx, ok := pgtx.From(msg.Context())
	if !ok {
		return e, nil, errors.New("no transaction in the context")
	}
	return e, tx, nil
}

// sendSMS calls the provider. The call cannot be part of the transaction: after a kill before the commit it is repeated. So the
// provider gets the event's ID as idempotency key.
func (s *service) sendSMS(ctx context.Context, eventID string, labour int64, text string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/labours/%d", s.cfg.SMS, labour), strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", eventID)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("SMS provider answered %s", res.Status)
	}
	return nil
}

type ranKey struct{}

// ran records that the handler ran in this delivery.
func ran(ctx context.Context) {
	if p, ok := ctx.Value(ranKey{}).(*bool); ok {
		*p = true
	}
}

// countDeliveries is outside of the claim, and counts the results of all deliveries.
func (s *service) countDeliveries(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		s.count("deliveries")
		handled := false
		msg.SetContext(context.WithValue(msg.Context(), ranKey{}, &handled))
		out, err := h(msg)
		select {
		case <-msg.Nacked():
			s.count("contended")
		default:
			switch {
			case err != nil:
				s.count("failed")
			case !handled:
				s.count("duplicates")
			}
		}
		return out, err
	}
}
