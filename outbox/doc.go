// Package outbox makes events part of a PostgreSQL transaction and forwards them to a broker.
//
// A [Publisher] is a Watermill publisher that writes events in the transaction of the message's context. A [Relay]
// reads the rows, publishes them and deletes exactly those whose publish the broker acknowledged: a row that exists is
// unpublished. So every committed event reaches the broker at least once, and none that was not committed; a relay that
// dies between publish and delete publishes again, at most RelayConfig.MaxInFlight events per shard, with the same IDs.
//
// Order: events of one key are first published in the order in which their transactions committed, provided that those
// transactions lock what the key stands for before they publish: the aggregate's row, or the key itself by [LockKey]. In a
// transaction of pgtx.Run events get their places at the commit. Any number of relays may run. The keys are divided into
// shards, and one relay at a time works on a shard. A relay that is stopped, killed or cannot publish loses its shards to
// the others.
//
// An event that cannot be published is retried, then dead: an operator retries or discards it, by "millrace outbox" or with
// package outboxadmin. Until then it blocks later events of its key; everything else goes on. While the broker or a topic
// is out of reach, its events wait: none becomes dead, and no attempt counts. Other topics go on. An event that ends the
// process of every relay that sends it is found, and is dead.
package outbox
