// Package framework assembles Millrace's parts into a service from one configuration. One line of the configuration chooses the
// broker.
//
//	var Completed = framework.Topic[LabourCompleted]("labour.completed")
//
//	svc, err := framework.Open(ctx, "millrace.yaml", pubsub.Driver, kafka.Driver)
//	err = framework.Handle(svc, "notify-family", Completed, notifyFamily) // func(context.Context, LabourCompleted) error
//	svc.HTTP().HandleFunc("POST /labours/{id}/complete", complete)
//	err = svc.RunUntilSignal(ctx)
//
// The parts also work without this package. The methods of Service return each part.
//
// # What a message goes through
//
//	broker → subscriber → recoverer → context → claim ─────────────────→ handler
//	         the event's trace goes on            BEGIN, claim its ID     writes with pgtx.From(ctx), Publish → outbox
//	broker ← ack ← ────────────────────────────── COMMIT of all that ← ───┘
//	                                                ↓
//	broker ← ────────────────────────────────────── relay
//
// So one transaction holds a handler's writes, the events that it publishes and the record that the event was processed.
// An event that is delivered twice takes effect once. An error or a panic rolls everything back, and the event is
// retried. It becomes a dead letter after Claim.MaxAttempts, or at once if the error is marked with claim.Permanent.
//
// An effect outside of the database goes through effect.Once or effect.Value, with the context of the handler or of the
// request, which carries the service's ledger (Service.Effects). Requests that clients repeat with an Idempotency-Key are
// executed once behind Service.Keys.
//
// With "kafka: delivery: transactional" a handler has neither a claim nor a database transaction. What it publishes
// commits together with the offset of its message, and read_committed readers see it once. What it writes to a database
// happens at least once, because Kafka and the database cannot commit together. The order is then
// recoverer → context → unit → handler. Such a service can run without a database: see
// Config.Postgres.Disabled.
//
// # What a request goes through
//
//	client → timeouts, TLS → trace → middleware (Service.Use) → route (Service.HTTP) → Keys → handler
//
// Probes, /metrics and push requests of the broker go from the trace to their route.
//
// # What is on the wire
//
// A payload is JSON as encoding/json writes it, or protobuf if the Go type is a proto.Message. Watermill's CQRS marshalers
// write it, so Watermill's CQRS component can read it. The event's ID is the message's UUID, and its key is the broker's
// own key (transport.SetKey). The metadata entries TypeMetadata and VersionMetadata have the event's type and version (see
// Topic), by which Handle decodes the payload. The entry "name" is for the CQRS component: the Go type's name without its
// package, or protobuf's full name. For a topic with several types use Service.AddHandler, or a topic of json.RawMessage.
//
// # Start and stop
//
// New connects, and checks everything that does not depend on handlers. Run makes the subscriptions, and then starts the
// housekeeping of the claims, the relay, the router and the HTTP server. When its context ends it takes no more messages
// and requests, and lets the running ones finish and commit. Then it stops the relay, and closes the transport and the
// pool.
package framework
