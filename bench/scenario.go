package main

import (
	"context"
	"slices"
	"time"
)

// scenarios is the registry, in the order in which the usage lists it.
var scenarios = []scenario{outboxWrite, relayDrain, relayHeld, relayLatency, relayWAL, relayKafka, claims, pubsubs, endToEnd, kafkaEOS, consolePages}

// scenario is one comparison of Millrace with its peers.
type scenario struct {
	name    string // as on the command line and in the JSON
	summary string // one line for the usage
	full    size
	quick   size // under 60 s once built, claim, relay-held and console under 90
	brokers bool // it needs no PostgreSQL
	run     func(context.Context, *environment) (*report, error)
}

// size is how much a scenario measures. A scenario uses the fields that mean something to it.
type size struct {
	rows     int           // events in one run
	runs     int           // of each contestant; a claim needs 10 or more
	box      time.Duration // how long a peer drains that might not get through, and how long a producer's turn lasts
	slowRuns int           // of what takes long to prepare or to run
	bigRows  int           // a backlog that has grown, and the dead rows of the worst case
	hugeRows int           // a backlog of days; 0: not measured
	pace     int           // events offered in a second
	requests int           // for each page in one run
	budget   time.Duration // no run begins, after the first, that would not end within it; 0: none
}

// environment is what a scenario runs in.
type environment struct {
	dsn    string
	source string // of the server
	size   size
	// progress tells people how far it is, one line at a time. It must not be called while a clock runs.
	progress func(format string, args ...any)
}

func find(scenarios []scenario, name string) (scenario, bool) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if i < 0 {
		return scenario{}, false
	}
	return scenarios[i], true
}
