package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

const (
	labourCompleted  = "labour.completed"
	notificationSent = "notification.sent"
)

// event is the payload of both topics.
type event struct {
	LabourID int64  `json:"labour_id"`
	Mother   string `json:"mother"`
}

// newMessage makes a message with a new ID. Every duplicate of the event keeps this ID.
func newMessage(ctx context.Context, e event) (*message.Message, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessageWithContext(ctx, outbox.NewID(), payload)
	transport.SetKey(msg, strconv.FormatInt(e.LabourID, 10))
	return msg, nil
}

var errNoLabour = errors.New("no such labour")

// api serves POST /labours/{id}/complete. A retry is safe: it changes nothing if the labour is completed, and publishes no event.
func (s *service) api(ctx context.Context) error {
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s.cfg.Schema})
	if err != nil {
		return err
	}
	notifier, err := outbox.NewNotifier(s.pool, outbox.NotifierConfig{Schema: s.cfg.Schema, Logger: s.log})
	if err != nil {
		return err
	}
	complete := func(ctx context.Context, id int64) error { return s.completeLabour(ctx, events, id) }
	if s.cfg.Without == "outbox" {
		publisher, err := s.publisher()
		if err != nil {
			return err
		}
		complete = func(ctx context.Context, id int64) error { return s.completeAndPublish(ctx, publisher, id) }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /labours/{id}/complete", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.Error(w, "the labour's ID is a whole number", http.StatusBadRequest)
			return
		}
		switch err := complete(r.Context(), id); {
		case errors.Is(err, errNoLabour):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			s.log.ErrorContext(r.Context(), "complete labour", "labour", id, "error", err)
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return stage.Together(ctx, notifier.Run, func(ctx context.Context) error { return stage.Serve(ctx, s.cfg.API, mux) })
}

// completeLabour writes the labour and its event in one transaction.
func (s *service) completeLabour(ctx context.Context, events message.Publisher, id int64) error {
	return pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		mother, done, err := markCompleted(ctx, tx, id)
		if err != nil || done {
			return err
		}
		msg, err := newMessage(ctx, event{LabourID: id, Mother: mother})
		if err != nil {
			return err
		}
		return events.Publish(s.topic(labourCompleted), msg)
	})
}

// cloud is the additional latency of a broker in the cloud, compared with the emulator on this machine.
const cloud = 50 * time.Millisecond

// completeAndPublish does what a service without an outbox does: it commits, then publishes. If the process dies in between, the
// event is lost for good, because the retry finds the labour completed.
func (s *service) completeAndPublish(ctx context.Context, broker message.Publisher, id int64) error {
	var (
		mother string
		done   bool
	)
	err := pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		mother, done, err = markCompleted(ctx, tx, id)
		return err
	})
	if err != nil || done {
		return err
	}
	msg, err := newMessage(ctx, event{LabourID: id, Mother: mother})
	if err != nil {
		return err
	}
	time.Sleep(cloud)
	return broker.Publish(s.topic(labourCompleted), msg)
}

// markCompleted returns done if the labour was completed before.
func markCompleted(ctx context.Context, tx pgx.Tx, id int64) (mother string, done bool, err error) {
	err = tx.QueryRow(ctx, `update labours set completed_at = now() where id = $1 and completed_at is null returning mother`, id).Scan(&mother)
	if !errors.Is(err, pgx.ErrNoRows) {
		return mother, false, err
	}
	err = tx.QueryRow(ctx, `select mother from labours where id = $1`, id).Scan(&mother)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoLabour
	}
	return mother, true, err
}
