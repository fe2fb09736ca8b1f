package console

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// overview is the content of the first page.
type overview struct {
	figures.Judgement
	Topics    []figures.Topic
	MoreNodes map[string]int // by column: how many are not drawn
	Lines     map[string]int // by column: how many nodes the line behind it is long
	Relays    []figures.Relay
	Consumers []figures.Consumer
	Effects   []provider
	Replays   []any // of dead letters, and of archived events

	busiest float64 // events per second of the node whose line is the widest
}

// provider counts the effects in doubt whose keys have the same beginning.
type provider struct {
	Name string
	outboxadmin.Count
}

const (
	// maxNodes is how many nodes a column of the pipeline has.
	maxNodes = 6
	// widest is the rate whose line is the widest where nothing is busier, and steps how many widths of a line console.css has after the first.
	widest, steps = 10.0, 9
)

func (q *request) overview() error {
	j := q.judge()
	s := j.Snapshot
	o := overview{Judgement: j, MoreNodes: map[string]int{}, Effects: providers(s)}
	for _, r := range q.replays(false) {
		o.Replays = append(o.Replays, r)
	}
	for _, r := range q.archiveReplays(false) {
		o.Replays = append(o.Replays, r)
	}
	o.Topics = cut(&o, "topics", s.Topics)
	o.Relays = cut(&o, "relays", s.Relays)
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
	o.Lines = map[string]int{
		"topics": max(len(o.Topics), len(o.Relays)), "relays": max(len(o.Relays), len(o.Consumers)), "consumers": max(len(o.Consumers), len(o.Effects)),
	}
	q.render(200, "page_overview.html", "Overview", "overview", o)
	return nil
}

// Width is the width of a node's line: it grows with the square root of the rate.
func (o overview) Width(c figures.Course) int { return int(steps * math.Sqrt(c.PerSecond()/o.busiest)) }

// cut keeps what the picture has room for.
func cut[T any](o *overview, column string, all []T) []T {
	if len(all) > maxNodes {
		o.MoreNodes[column] = len(all) - maxNodes
		return all[:maxNodes]
	}
	return all
}

// providers groups effects in doubt by the beginning of their keys: service/sms.
func providers(s figures.Snapshot) (all []provider) {
	at := map[string]int{}
	for _, e := range s.Doubts {
		name := providerOf(e.Key)
		i, known := at[name]
		if !known {
			i = len(all)
			at[name] = i
			all = append(all, provider{name, outboxadmin.Count{AtLeast: s.InDoubt.AtLeast}})
		}
		all[i].N++
	}
	slices.SortStableFunc(all, func(a, b provider) int { return cmp.Compare(b.N, a.N) })
	return all
}

// providerOf returns the beginning of an effect's key: the service and the next word.
func providerOf(key string) string {
	service, rest, _ := strings.Cut(key, "/")
	if i := strings.IndexAny(rest, "/:"); i >= 0 {
		rest = rest[:i]
	}
	return service + "/" + rest
}
