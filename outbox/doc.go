// Package outbox makes events part of a PostgreSQL transaction and forwards them to a broker.
//
// A [Publisher] is a Watermill publisher that writes events in the transaction of the message's context. A [Relay]
// reads the rows, publishes them and deletes exactly those whose publish the broker acknowledged: a row that exists is
// unpublished. So every committed event reaches the broker at least once, and none that was not committed; a relay that
// dies between publish and delete publishes at most one batch per shard again, with the same event IDs.
//
// Order: events of one key are first published in the order in which their transactions committed, provided that those
// transactions lock what the key stands for (the aggregate's row) before they publish. Any number of relays may run;
// each shard of keys is worked on by one of them at a time.
package outbox
