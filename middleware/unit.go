// Package middleware has middleware for Watermill's router that depends on no transport and on no database.
package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Unit adds the messages that a handler returns to the unit of the consumed message. Watermill's router publishes these
// messages, but does not pass the unit on to them. If an attempt fails or panics, Unit drops what it has published or
// returned, so that Retry may run the handler again. Without a unit, Unit only calls the handler. So it may wrap any handler.
//
// Add Unit after the middleware that runs handlers again or swallows their errors (Retry, PoisonQueue, Recoverer). Such
// middleware must find that the output of a failed attempt is already gone. Unit is safe for concurrent use.
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
