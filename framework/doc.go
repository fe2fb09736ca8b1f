// Package framework makes a running service of Millrace's parts and one configuration, in which the broker is a line.
//
//	svc, err := framework.New(ctx, cfg, pubsub.Driver, kafka.Driver)
//	err = framework.Handle(svc, "notify-family", "labour.completed", notifyFamily) // func(context.Context, LabourCompleted) error
//	svc.HTTP().HandleFunc("POST /labours/{id}/complete", complete)
//	err = svc.RunUntilSignal(ctx)
//
// Nothing in it is needed to use the parts alone, and each of them stays reachable: see the methods of Service.
//
// # What a message goes through
//
//	broker → subscriber → recoverer → context → claim ─────────────────→ handler
//	         the event's trace goes on            BEGIN, claim its ID     writes with pgtx.From(ctx), Publish → outbox
//	broker ← ack ← ────────────────────────────── COMMIT of all that ← ───┘
//	                                                ↓
//	broker ← ────────────────────────────────────── relay
//
// So a handler's writes, what it publishes and the record that the event was processed are one transaction, however
// often the event is delivered. An error, or a panic, undoes all of it; the event comes back, and ends among the dead
// letters after Claim.MaxAttempts, or at once when the error is marked with claim.Permanent.
//
// An effect outside of the database goes through effect.Once or effect.Value, with the context of the handler or of the
// request, which carries the service's ledger (Service.Effects). Requests that clients repeat with an Idempotency-Key are
// executed once behind Service.Keys.
//
// Where the transport itself settles messages in transactions ("kafka: delivery: transactional") there is neither claim
// nor database transaction for them: what a handler publishes commits together with the offset of its message, and readers
// that are read_committed see it once. What such a handler writes to a database happens at least once, for the two cannot
// commit together. The order is then recoverer → context → unit → handler.
//
// # What is on the wire
//
// A payload is JSON as encoding/json writes it, or protobuf where the Go type is a proto.Message: Watermill's CQRS
// marshalers, so that its CQRS component reads and writes the same. The event's ID is the message's UUID, its key the
// broker's own (transport.SetKey), and the metadata entry "name" tells the type, for people and for that component: the Go
// type's name without its package, or protobuf's full name. A topic has events of one type, and it is the topic that tells
// Handle which: a handler does not look at "name". Topics of many types are for Service.AddHandler, or the type
// json.RawMessage.
//
// # Start and stop
//
// New connects and checks everything that can be checked without a handler; Run makes the subscriptions, and then starts
// what keeps the claims, the relay, the router and the HTTP server. When its context ends it takes neither messages nor
// requests any more, lets those in hand finish and commit, and then stops the relay, closes the transport and the pool.
package framework
