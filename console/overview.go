package console

import (
	"math"
	"strconv"

	"github.com/millrace-go/millrace/console/internal/figures"
)

// overview is the content of the first page.
type overview struct {
	figures.Judgement
	Topics    []figures.Topic
	MoreNodes map[string]int // by column: how many are not drawn
	Lines     map[string]int // by column: how many nodes the line behind it is long
	Relays    []figures.Relay
	Brokers   []figures.Broker
	Consumers []figures.Consumer
	Effects   []figures.Provider
	Replays   []any // of dead letters, and of archived events

	busiest float64 // events per second of the node whose line is the widest
}

const (
	// maxNodes is how many nodes a column of the pipeline has.
	maxNodes = 6
	// widest is the rate, in events per second, of the widest line unless a node is busier. console.css has steps widths above the thinnest.
	widest, steps = 10.0, 9
)

func (q *request) overview() error {
	j := q.judge()
	s := j.Snapshot
	o := overview{Judgement: j, MoreNodes: map[string]int{}, Effects: s.Providers()}
	for _, r := range q.replays(false) {
		o.Replays = append(o.Replays, r)
	}
	for _, r := range q.archiveReplays(false) {
		o.Replays = append(o.Replays, r)
	}
	o.Topics = cut(&o, "topics", s.Topics)
	o.Relays = cut(&o, "relays", s.Relays)
	o.Brokers = q.brokers.Look(q.ctx(), q.db.Name, s.Topics)
	o.Verdict = o.Verdict.With(o.Brokers)
	for i, b := range o.Brokers {
		o.Brokers[i].Topics = cut(&o, "broker "+strconv.Itoa(i), b.Topics)
	}
	o.Consumers = cut(&o, "consumers", s.Consumers)
	o.busiest = widest
	for _, t := range o.Topics {
		o.busiest = max(o.busiest, t.PerSecond())
	}
	for _, r := range o.Relays {
		o.busiest = max(o.busiest, r.PerSecond())
	}
	for _, c := range o.Consumers {
		o.busiest = max(o.busiest, c.PerSecond())
	}
	o.Effects = cut(&o, "effects", o.Effects)
	atBroker := 0
	for _, b := range o.Brokers {
		atBroker = max(atBroker, min(len(b.Topics), maxNodes))
	}
	o.Lines = map[string]int{
		"topics": max(len(o.Topics), len(o.Relays)), "relays": max(len(o.Relays), len(o.Consumers), atBroker),
		"broker": max(len(o.Consumers), atBroker), "consumers": max(len(o.Consumers), len(o.Effects)),
	}
	q.render(200, "page_overview.html", "Overview", "overview", o)
	return nil
}

// Width is the width of a node's line: it grows with the square root of the rate.
func (o overview) Width(c figures.Course) int { return int(steps * math.Sqrt(c.PerSecond()/o.busiest)) }

// Stages is how many columns the picture has.
func (o overview) Stages() int { return 4 + len(o.Brokers) }

// cut keeps what the picture has room for.
func cut[T any](o *overview, column string, all []T) []T {
	if len(all) > maxNodes {
		o.MoreNodes[column] = len(all) - maxNodes
		return all[:maxNodes]
	}
	return all
}
