// Package millracetest attacks your handlers, in tests, with the faults that Millrace promises to survive.
//
// [Run] handles an event once without a fault. Then it handles it again with one fault at a time: the process dies before and
// after each statement, at the commit, and between commit and ack; the connection is lost; a statement fails; a provider refuses,
// or its answer is lost; the event is delivered twice, to two processes at once, and late. After each fault the event is
// delivered until it is acked, to a new process if the old one has died. Then the tables, the published events and the calls of
// providers must be the same as without a fault. Run fails the test at the first difference, and names the line of the handler.
//
// Run finds the points of attack itself. A proxy between the service and PostgreSQL reads the protocol, and cuts connections at
// the n-th statement; [Process.HTTP] counts the calls of providers. So the handler needs no changes. The function that sets it up
// in the service sets it up for each process of the test, too.
//
// Limits: the kit attacks one event at a time. It does not see changes to files, or to databases that the handler reaches without
// [Process], and it does not move the clock. A statement in a goroutine that outlives the handler is at no fixed point.
//
// [Published] is for smaller tests: it asserts which events a transaction has published so far.
//
// The package is for tests only.
package millracetest
