// Package outbox makes events part of a PostgreSQL transaction and forwards them to a broker.
//
// A [Publisher] is a Watermill publisher that writes events in the transaction of the message's context. A [Relay]
// reads the rows, publishes them, and deletes a row only after the broker has acknowledged it. A row that exists is
// unpublished. So each committed event reaches the broker at least once, and an event that was not committed never does. If a relay
// dies between publishing and deleting, events are published again with the same IDs: at most RelayConfig.MaxInFlight per shard.
//
// Order: events of one key are first published in the order in which their transactions committed, provided that those
// transactions lock what the key stands for before they publish: the aggregate's row, or the key itself by [LockKey]. In a
// transaction of pgtx.Run, events get their sequence numbers at the commit. Any number of relays may run. The keys are divided into
// shards, and one relay at a time works on a shard. A relay that stops, is killed or cannot publish loses its shards to
// other relays.
//
// An event that cannot be published is retried, and becomes dead when the retries are used up. An operator then retries or discards
// it, with "millrace outbox" or package outboxadmin. Until then it blocks later events of its key; other keys are not affected.
// While the broker or a topic is unavailable, its events wait: none becomes dead, no attempt is counted, and other topics go on.
// The relays also find an event that crashes every process that sends it, and make it dead.
package outbox
