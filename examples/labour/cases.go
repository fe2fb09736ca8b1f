package main

import (
	"context"
	"errors"
	"time"
)

// publishing says when labour.completed is published to the bus.
type publishing int

const (
	inTransaction publishing = iota // to the outbox
	afterCommit
	beforeCommit
)

// guard says what prevents a consumer from handling an event twice.
type guard int

const (
	claimed guard = iota
	unguarded
	looksFirst
)

// ways describe how the two services are implemented.
type ways struct {
	name    string
	publish publishing
	guard   guard
	ledger  bool
}

var withMillrace = ways{name: "outbox, claim and ledger", ledger: true}

// scenario is a failure.
type scenario struct {
	name  string
	naive ways // the code that fails

	// arrange prepares the failure.
	arrange func(s *scene)
	// mend ends the failure, after the mother's first attempt.
	mend func(s *scene)
	// deliveries returns how many deliveries the notification service gets, if each attempt that may publish the event does.
	deliveries func(w ways) int
}

var (
	errDatabase = errors.New("the database has gone away")
	errConsumer = errors.New("the consumer fails behind the text")
)

func times(n int) func(ways) int { return func(ways) int { return n } }

var cases = []scenario{
	{
		name:    "The bus is down when the labour is completed",
		naive:   ways{name: "commit, then publish", publish: afterCommit, ledger: true},
		arrange: func(s *scene) { s.bus.set(s.topic(), fault{down: true}) },
		mend:    func(s *scene) { s.bus.set(s.topic(), fault{}) },
		deliveries: func(w ways) int {
			if w.publish == afterCommit {
				return 0 // the first attempt cannot publish, and the next one finds the labour completed
			}
			return 1
		},
	},
	{
		name:    "The database goes away before the commit",
		naive:   ways{name: "publish, then commit", publish: beforeCommit, ledger: true},
		arrange: func(s *scene) { s.beforeCommit = once(errDatabase) },
		deliveries: func(w ways) int {
			if w.publish == beforeCommit {
				return 2 // of two events, because each attempt creates one
			}
			return 1
		},
	},
	{
		name:       "The relay does not hear that the bus has the event",
		naive:      ways{name: "a consumer that expects it once", guard: unguarded},
		arrange:    func(s *scene) { s.bus.set(s.topic(), fault{deaf: true}) },
		deliveries: times(2),
	},
	{
		name:  "Two consumers get the event at once",
		naive: ways{name: "look, handle, note", guard: looksFirst},
		arrange: func(s *scene) {
			s.bus.set(s.topic(), fault{twice: true})
			s.meet = func(ctx context.Context) { await(ctx, meeting, func() bool { return s.arrived.Load() >= 2 }) }
		},
		deliveries: times(2),
	},
	{
		name:       "The consumer fails behind the text, before its commit",
		naive:      ways{name: "claim without a ledger"},
		arrange:    func(s *scene) { s.behindTheText = once(errConsumer) },
		deliveries: times(2),
	},
}

// meeting is how long one consumer waits for the other, which with Kafka may be behind it in the same partition.
const meeting = 5 * time.Second

// once returns a function that returns the error only the first time.
func once(err error) func() error {
	return func() error {
		e := err
		err = nil
		return e
	}
}

// await waits until holds returns true, for at most patience.
func await(ctx context.Context, patience time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}
