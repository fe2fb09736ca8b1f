// Package brokermigration takes a fleet from one broker to another, so that no event is lost, has its effect twice, or overtakes an
// earlier one of its key.
//
// [New] makes one transport of both brokers: its subscribers read both, and its publisher obeys a record in the outbox's database.
// So all relays change the broker together, whatever their configurations say. [Inspect] tells whether the next [Phase] is safe, and
// what keeps it from being so; [Step] goes there, or back. docs/design.md says why this keeps the order.
package brokermigration
