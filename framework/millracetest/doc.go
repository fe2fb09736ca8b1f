// Package millracetest attacks your handlers, in tests, with the faults that Millrace promises to survive.
//
// [Run] handles an event once without a fault. Then it handles it again with one fault at a time: the process dies before and
// behind each statement, at the commit, and between commit and ack; the connection is lost; a statement fails; a provider
// refuses, or its answer is lost; the event is delivered twice, twice at once, and late. After each fault the event is delivered
// until it is acked, by a new process where the old one has died. Then the tables, the published events and the calls of
// providers must be the same as without a fault. Run fails the test at the first difference, and names the line of the handler.
//
// Run finds these points itself. A proxy between the service and PostgreSQL reads the protocol and cuts connections at the n-th
// statement; [Process.HTTP] counts the calls of providers. So the handler stays as it is. It is set up for each process of the
// test, by the same function that sets it up in the service.
//
// Where it ends: the kit attacks one event at a time. It does not see what a handler does to files or to databases that it reaches
// without [Process], and it does not move the clock. A statement in a goroutine that outlives the handler is at no fixed point.
//
// [Published] is for smaller tests: it asserts what a transaction has published so far.
//
// The package is for tests alone.
package millracetest
