package brokermigration

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Phase is how far a migration has come. In each phase the consumers of its processes read both brokers.
type Phase string

// The phases. From one to the next is a step: Consume, Drain, Publish, Cut. The way back from Publish is Return and then Consume.
const (
	Consume Phase = "consume" // events are published to the old broker, as ever
	Drain   Phase = "drain"   // no event is published: consumers read the old broker to its end
	Publish Phase = "publish" // events are published to the new broker
	Cut     Phase = "cut"     // the same; and processes may run that know nothing but the new broker
	Return  Phase = "return"  // no event is published: consumers read the new broker to its end
)

// forward and back are the steps.
var (
	forward = map[Phase]Phase{Consume: Drain, Drain: Publish, Publish: Cut, Return: Publish}
	back    = map[Phase]Phase{Drain: Consume, Publish: Return, Return: Consume, Cut: Publish}
)

// Record is what the database says of migrations. The zero Record says that there has been none.
type Record struct {
	Epoch     int64 // counts the steps
	From, To  string
	Phase     Phase
	ChangedAt time.Time
}

// publishesTo is the broker that events are published to, "" for none.
func (r Record) publishesTo() string {
	switch r.Phase {
	case Consume:
		return r.From
	case Publish, Cut:
		return r.To
	case Drain, Return:
	}
	return ""
}

// In returns the record as a process sees it whose configuration has these brokers; to is "" for one that takes part in no
// migration. The error says why such a process must not publish.
func (r Record) In(from, to string) (Record, error) {
	switch {
	case r.Epoch == 0, r.Phase == Consume && r.From == from, r.Phase == Cut && r.To == from:
		return Record{Epoch: r.Epoch, From: from, To: to, Phase: Consume, ChangedAt: r.ChangedAt}, nil // of a migration that has not begun
	case r.From == from && r.To == to:
		return r, nil
	}
	want := fmt.Sprintf("want broker: %s and migration: {to: %s}", r.From, r.To)
	if r.Phase == Cut {
		want = "want broker: " + r.To
	}
	return Record{}, fmt.Errorf("the events of this database are in migration from %s to %s, phase %s, and the configuration has broker: %s%s: %s",
		r.From, r.To, r.Phase, from, orTo(to), want)
}

func orTo(to string) string {
	if to == "" {
		return " and no migration"
	}
	return " and migration: {to: " + to + "}"
}

// Facts are what decides whether a step is safe.
type Facts struct {
	Processes []Process           // that live
	Strangers []string            // relays and consumers that live and take part in no migration, by host and process
	Unread    map[string][]string // by broker: what its consumers have not read
	Missing   map[string][]string // by broker: consumers that events published there would not reach
}

// blocked returns why the step must not be made now; none: it is safe.
//
// When publishing changes to another broker, the events that went to the one before must have been handled. So everybody must know
// that nothing is published any more, have nothing in flight, and nothing may be unread; and the consumers must be known to the broker that
// is published to, because some brokers keep nothing for those that are not. A step that stops publishing, or that goes
// on with the same broker, is always safe for those that obey the record.
//
// Back from Cut, processes that know only the new broker could not start again, because Publish refuses their configuration.
func blocked(r Record, to Phase, f Facts) (why []string) {
	next := r
	next.Phase = to
	leaves := r.Phase == Consume || to == Publish && r.Phase == Drain || to == Consume && r.Phase == Return || to == Cut || r.Phase == Cut || to == Return
	if leaves {
		for _, name := range f.Strangers {
			why = append(why, fmt.Sprintf("process %s takes no part in the migration: give it broker: %s and migration: {to: %s}, or stop it", name, r.From, r.To))
		}
	}
	if r.Phase == Consume && len(f.Processes) == 0 {
		why = append(why, fmt.Sprintf("no process takes part in the migration: start processes with broker: %s and migration: {to: %s}", r.From, r.To))
	}
	var source string // that is not published to any more
	switch {
	case r.Phase == Drain && to == Publish, to == Cut:
		source = r.From
	case r.Phase == Return && to == Consume:
		source = r.To
	default:
		return why
	}
	for _, p := range f.Processes {
		if p.Epoch < r.Epoch {
			why = append(why, fmt.Sprintf("process %s has not yet ended what it began before phase %s", p.Name, r.Phase))
		}
	}
	why = append(why, f.Unread[source]...)
	if to == Cut { // it is published to already
		return why
	}
	return append(why, f.Missing[next.publishesTo()]...)
}

// Process is one that takes part in the migration.
type Process struct {
	Name    string `json:"name"` // host and process
	Service string `json:"service"`
	// Epoch is that of the latest step that it knows, with nothing in flight from before.
	Epoch     int64  `json:"epoch"`
	Consumers []Read `json:"consumers"`

	from, to string
	alive    bool
	quiet    map[string]time.Duration // by broker: how long it has had no message of it, and nothing in flight from an earlier step
}

// Read is a topic that a consumer reads.
type Read struct {
	Topic string `json:"topic"`
	Group string `json:"group"` // the broker's name for the consumer
}

// readers returns the reads of all processes, also of those that have ended, and how many that live have each.
func readers(all []Process) (reads []Read, alive map[Read]int) {
	alive = map[Read]int{}
	for _, p := range all {
		for _, r := range p.Consumers {
			if !slices.Contains(reads, r) {
				reads = append(reads, r)
			}
			if p.alive {
				alive[r]++
			}
		}
	}
	slices.SortFunc(reads, func(a, b Read) int { return strings.Compare(a.Topic+"\x00"+a.Group, b.Topic+"\x00"+b.Group) })
	return reads, alive
}

// quietFor is for how long no process has had a message of the broker, nor anything in flight from an earlier step.
func quietFor(all []Process, broker string) time.Duration {
	quiet := time.Duration(math.MaxInt64)
	for _, p := range all {
		quiet = min(quiet, p.quiet[broker])
	}
	return quiet
}
