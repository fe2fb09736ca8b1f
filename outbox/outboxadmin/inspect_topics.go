package outboxadmin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// The states of a TopicReport.
const (
	TopicPaused     = "paused"     // an operator has paused it
	TopicFailing    = "failing"    // a relay gets none of its events published
	TopicRedirected = "redirected" // its events are published to another topic: they wait for nothing
	TopicSlow       = "slow"       // the broker takes its events slowly: they wait for their share of what a relay has in flight
)

// TopicReport is one topic of a Report.
type TopicReport struct {
	Topic   string     `json:"topic"`
	Pending Count      `json:"pending"` // of the rows that were counted
	Oldest  *time.Time `json:"oldest"`
	Failed  Count      `json:"failed"`
	TopicState
}

// TopicState is why events of a topic wait, or that they go to another topic. All fields are zero if nothing is known.
type TopicState struct {
	State  string     `json:"state,omitempty"` // "paused", "failing", "slow" or "redirected"
	Since  *time.Time `json:"since,omitempty"`
	By     string     `json:"by,omitempty"`     // who paused or redirected it
	Reason string     `json:"reason,omitempty"` // why, or the publisher's last error
	Retry  *time.Time `json:"retry,omitempty"`  // when a relay tries again
	To     string     `json:"to,omitempty"`     // the topic that its events are published to; "": itself
}

// Flow is what relays did with the events of a topic, or what one of them did.
type Flow struct {
	Topic   string // "": the topics beyond the first 100 of a relay
	Relay   string // its ID; then Topic is ""
	Minutes []FlowMinute
}

// FlowMinute is what was counted and written within a minute.
type FlowMinute struct {
	At        time.Time // its beginning; the server's
	Published int64
	Failed    int64 // attempts that failed; those of an outage, too
}

// Flows is what relays did in the last hour. They count in memory and write it every 10 s.
type Flows struct {
	Now    time.Time // the server's
	Since  time.Time // what was counted before is not here: an hour ago, or later where more was counted than is read
	Topics []Flow    // those of which events were sent, by name
	Relays []Flow    // those that sent events, by ID
}

// maxCounted is how many rows of the journal are read.
const maxCounted = 20_000

// InspectFlows tells what relays did in the last hour. What it reads is bounded. It takes no locks.
func InspectFlows(ctx context.Context, db pgtx.DB, schema string) (all Flows, err error) {
	err = administer(ctx, db, schema, "inspect flows", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("flows", schema), maxCounted)
		if err != nil {
			return err
		}
		var topic, relay *string
		var m struct {
			at                *time.Time // nil: nothing was counted
			published, failed *int64
		}
		_, err = pgx.ForEachRow(rows, []any{&all.Now, &all.Since, &topic, &relay, &m.at, &m.published, &m.failed}, func() error {
			if m.at == nil {
				return nil
			}
			of, next := &all.Topics, Flow{}
			if relay != nil {
				of, next.Relay = &all.Relays, *relay
			} else {
				next.Topic = *topic
			}
			if n := len(*of); n == 0 || (*of)[n-1].Topic != next.Topic || (*of)[n-1].Relay != next.Relay {
				*of = append(*of, next)
			}
			last := &(*of)[len(*of)-1]
			last.Minutes = append(last.Minutes, FlowMinute{*m.at, *m.published, *m.failed})
			return nil
		})
		return err
	})
	return all, err
}

// Topic returns the report of a topic, also of one that Topics does not have.
func (r *Report) Topic(name string) TopicReport {
	for _, t := range r.Topics {
		if t.Topic == name {
			return t
		}
	}
	return r.bound(TopicReport{Topic: name})
}

// bound marks the counts of a topic as lower bounds if rows were not counted: they may be this topic's.
func (r *Report) bound(t TopicReport) TopicReport {
	t.Pending.AtLeast = r.Pending.AtLeast
	t.Failed.AtLeast = r.Failed["retrying"].AtLeast || r.Failed["blocked"].AtLeast || r.Failed["dead"].AtLeast
	return t
}

// holdsUp reports whether an event of the topic holds up later events of its key for as long as the state lasts.
func (s TopicState) holdsUp() bool { return s.State == TopicPaused || s.State == TopicFailing }

// topicStates returns why events of topics wait, by topic. Where relays differ, the worst state counts, and since when a relay
// has been in it.
func topicStates(ctx context.Context, tx pgx.Tx, schema string) (map[string]TopicState, error) {
	rows, err := tx.Query(ctx, query("topic_states", schema))
	if err != nil {
		return nil, err
	}
	var topic string
	var s TopicState
	states, worst := map[string]TopicState{}, []string{TopicPaused, TopicFailing, TopicSlow, TopicRedirected, ""}
	_, err = pgx.ForEachRow(rows, []any{&topic, &s.State, &s.Since, &s.By, &s.Reason, &s.Retry, &s.To}, func() error {
		kept := states[topic]
		to := cmp.Or(s.To, kept.To)
		if slices.Index(worst, s.State) < slices.Index(worst, kept.State) {
			kept = s
		}
		kept.To = to
		states[topic] = kept
		return nil
	})
	return states, err
}

// heldUp returns the topics whose events do not go on.
func heldUp(states map[string]TopicState) []string {
	topics := []string{}
	for name, s := range states {
		if s.holdsUp() {
			topics = append(topics, name)
		}
	}
	return topics
}

// addStates adds to the topics why they wait, and puts those first.
func (r *Report) addStates(states map[string]TopicState) {
	for i := range r.Topics {
		t := &r.Topics[i]
		t.TopicState = states[t.Topic]
		delete(states, t.Topic)
	}
	for name, s := range states {
		r.Topics = append(r.Topics, TopicReport{Topic: name, TopicState: s})
	}
	order := []string{TopicFailing, TopicPaused, TopicSlow, TopicRedirected, ""}
	slices.SortStableFunc(r.Topics, func(a, b TopicReport) int {
		if a.State != "" && a.State == b.State {
			return cmp.Compare(a.Topic, b.Topic)
		}
		return cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State))
	})
}
