package claim

import "github.com/jackc/pgx/v5/pgxpool"

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
