package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	bookingConfirmed = "booking.confirmed"
	manifestUpdated  = "manifest.updated"
)

// booking is a guest's request. With its ID it is also the answer, and the payload of both events.
type booking struct {
	ID      string `json:"id,omitempty"`
	Sailing string `json:"sailing"`
	Guest   string `json:"guest"`
	Cabin   string `json:"cabin"`
}

// book answers POST /bookings. The middleware around it makes one transaction of the booking, its event and the answer.
func (h harborPoint) book(w http.ResponseWriter, r *http.Request) {
	var b booking
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil || b.Sailing == "" || b.Guest == "" || b.Cabin == "" {
		http.Error(w, "want sailing, guest and cabin", http.StatusUnprocessableEntity)
		return
	}
	b.ID = outbox.NewID()
	err := pgtx.Run(r.Context(), h.Pool(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into bookings (id, client_key, sailing, guest, cabin) values ($1, $2, $3, $4, $5)`,
			b.ID, r.Header.Get("Idempotency-Key"), b.Sailing, b.Guest, b.Cabin); err != nil {
			return err
		}
		return h.confirmed.Publish(ctx, b.Sailing, b)
	})
	if err != nil {
		h.p.Log.ErrorContext(r.Context(), "book", "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(b)
}

// projectManifest writes the manifest and its event in the claim's transaction.
func (h harborPoint) projectManifest(ctx context.Context, b booking) error {
	if err := h.exec(ctx, `insert into passenger_manifest (sailing, booking_id, guest, cabin) values ($1, $2, $3, $4)`,
		b.Sailing, b.ID, b.Guest, b.Cabin); err != nil {
		return err
	}
	return h.updated.Publish(ctx, b.Sailing, b)
}

// embark counts the passengers of a sailing.
func (h harborPoint) embark(ctx context.Context, b booking) error {
	if err := h.exec(ctx, `insert into embarkations (sailing, booking_id) values ($1, $2)`, b.Sailing, b.ID); err != nil {
		return err
	}
	return h.exec(ctx, `insert into sailings as s (sailing, passengers) values ($1, 1)
		on conflict (sailing) do update set passengers = s.passengers + 1`, b.Sailing)
}

func (h harborPoint) exec(ctx context.Context, sql string, args ...any) error {
	tx, ok := pgtx.From(ctx)
	if !ok {
		return errors.New("no transaction in the context")
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// confirmByMail sends the e-mail, which cannot be part of a transaction. The ledger records that it was sent; after a kill in between, it
// asks the mailer.
func (h harborPoint) confirmByMail(ctx context.Context, b booking) error {
	m := mailer{h.p.Extra}
	if h.o.without == "ledger" {
		return m.send(ctx, b.ID)
	}
	return effect.Once(ctx, "confirmation:"+b.ID, func(ctx context.Context, _ string) error { return m.send(ctx, b.ID) },
		effect.Reconcile(func(ctx context.Context, _ effect.Intent) (effect.Outcome, error) {
			switch sent, err := m.sent(ctx, b.ID); {
			case err != nil:
				return effect.Unknown(), err
			case sent:
				return effect.WasDone(nil), nil
			}
			return effect.WasNotDone(), nil
		}))
}

// repeat publishes a share of the events again, with the same IDs and without the outbox. It simulates a bridge, or a relay that dies at
// a bad moment. It is an ordinary Watermill handler.
func (h harborPoint) repeat(msg *message.Message) error {
	if !stage.Chosen("repeat"+msg.UUID, 0.3) || msg.Metadata.Get("repeated") != "" {
		return nil
	}
	publisher, err := h.Transport().Publisher()
	if err != nil {
		return err
	}
	again := msg.Copy()
	again.Metadata.Set("repeated", "yes")
	again.SetContext(context.WithoutCancel(msg.Context()))
	return publisher.Publish(h.confirmed.Name(), again)
}
