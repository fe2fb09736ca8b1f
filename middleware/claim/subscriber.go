package claim

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Subscriber wraps the subscriber of a handler, so that events which its consumer could not handle are brought back by
// Millrace in place of the broker: they are kept in the table and acked, so they hold up neither a partition nor a
// worker, and are delivered again after Config.Backoff, among those of sub. Where order matters (Config.Ordered) the later
// events of a key follow in order. Events that an operator replays come back here too. Several processes share the work.
//
// The wrapper must be the one that the router is given, and consumer what Config.Consumer returns for the handler.
// Closing it, or the end of Subscribe's context, stops both; what it has delivered may finish. It needs a PostgreSQL
// store. It is safe for concurrent use.
//
// When a consumer's topic was renamed, events that had failed before belong to a topic that nobody subscribes to. The
// subscription takes them once they have been due for 5 minutes, if it is the consumer's only one in this process.
func (c *Claim) Subscriber(consumer string, sub message.Subscriber, options ...SubscriberOption) message.Subscriber {
	var o subscription
	for _, set := range options {
		set(&o)
	}
	return c.redelivery.Subscriber(c.scoped(consumer), sub, o.within)
}

// SubscriberOption changes what Claim.Subscriber returns.
type SubscriberOption func(*subscription)

type subscription struct{ within int }

// Within makes the events that are retried from the table count with those that the wrapped subscriber delivers: of each
// subscription at most n are handled at once. n is the wrapped subscriber's concurrency; 0 is no limit, and so is Config.Deferred,
// where the next message comes before the ack of the one before. Default: 10 retries, beside what the wrapped subscriber delivers.
func Within(n int) SubscriberOption {
	return func(s *subscription) { s.within = n }
}

// besides is how many connections of the pool are not for handlers: the one of what runs in the background, such as
// retries from the table and housekeeping, and one for what else the service asks its database, such as its health.
const besides = 2

// Concurrency is how many messages each of the service's subscriptions should handle at once, for
// transport.SubscriberConfig.Concurrency: a running claim holds one connection of the pool, and handlers that wait for
// one hold their messages, and the locks of what they have begun, without moving on. It is at least 1. What handlers
// take from the pool beside their claim, and relays on the same pool (five connections), must be added to it.
func Concurrency(pool *pgxpool.Pool, subscriptions int) int {
	return max(1, (int(pool.Config().MaxConns)-besides)/max(1, subscriptions))
}
