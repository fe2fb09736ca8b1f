package claim

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Subscriber wraps the subscriber of a handler. Events that the consumer could not handle are then retried by Millrace and
// not by the broker: they are kept in the table and acked, so they hold up neither a partition nor a worker. The wrapper
// delivers them again after Config.Backoff, together with the messages of sub. With Config.Ordered the later events of a key
// follow in order. The wrapper also delivers events that an operator replays. Several processes share the work.
//
// Give the wrapper to the router. consumer is what Config.Consumer returns for the handler. Closing the wrapper, or the end of
// Subscribe's context, stops both subscribers; messages already delivered may finish. Subscriber needs a PostgreSQL store. It
// is safe for concurrent use.
//
// After a consumer's topic was renamed, events that failed before belong to a topic without a subscription. The
// consumer's subscription delivers them too once they have been due for 5 minutes, if it is the only one in this process.
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

// Within limits how many events of each subscription are handled at once to n, those that are retried from the table included. n is
// the wrapped subscriber's concurrency. 0 means no limit; so does Config.Deferred, because there the next message arrives before
// the ack of the one before. Default: 10 retries, beside the messages that the wrapped subscriber delivers.
func Within(n int) SubscriberOption {
	return func(s *subscription) { s.within = n }
}

// besides is how many connections of the pool are not for handlers: one for background work, such as retries from the table
// and housekeeping, and one for other queries of the service, such as its health check.
const besides = 2

// Concurrency returns how many messages each of the service's subscriptions should handle at once, for
// transport.SubscriberConfig.Concurrency. It is at least 1. A running claim holds one connection of the pool. A handler that waits
// for a connection holds its message and its locks without progress. If handlers take further connections from the pool, or
// relays use it (five connections), make the pool larger by that number.
func Concurrency(pool *pgxpool.Pool, subscriptions int) int {
	return max(1, (int(pool.Config().MaxConns)-besides)/max(1, subscriptions))
}
