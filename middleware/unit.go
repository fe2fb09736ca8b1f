// Package middleware has what belongs to no transport and to no database: middleware of Watermill's router for handlers on
// transactional delivery.
package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Unit makes the messages that a handler returns part of the consumed message's unit: Watermill's router, which publishes
// them, gives them no trace of it. What an attempt has published or returned when it fails or panics is dropped, so that
// Retry may run the handler again. It does nothing without a unit, and so it may stand before every handler.
//
// Add it after the middleware that runs handlers again or swallows their errors (Retry, PoisonQueue, Recoverer): those
// must see attempts whose outputs are gone. It is safe for concurrent use.
func Unit(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		unit := transport.UnitFrom(msg.Context())
		if unit == nil {
			return h(msg)
		}
		rollback := unit.Savepoint()
		ok := false
		defer func() {
			if !ok {
				rollback()
			}
		}()
		if produced, err = h(msg); err != nil {
			return nil, err
		}
		ok = true
		for _, p := range produced {
			if transport.UnitFrom(p.Context()) == nil {
				p.SetContext(transport.WithUnit(p.Context(), unit))
			}
		}
		return produced, nil
	}
}
