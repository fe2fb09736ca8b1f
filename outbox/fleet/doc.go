// Package fleet forwards the outboxes of many databases, those of tenants or of services, in one process.
//
// A database without work costs no connection: one connection for each server tells in which of its databases something may have
// been committed, and those are asked whether there is work. A database that has some gets a relay until it has none. Each server
// has a budget of connections; where more databases have work than it allows, they take turns. A database that does not answer
// delays no other. Any number of processes may run the same fleet.
package fleet
