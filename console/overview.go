package console

import (
	"slices"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// overview is the content of the first page.
type overview struct {
	figures.Judgement
	Topics    []outboxadmin.TopicReport
	MoreNodes map[string]int // column -> number of nodes that are not drawn
	Lines     map[string]int // column -> length of the line behind it, in nodes
	Relays    []outboxadmin.RelayReport
	Consumers []figures.Consumer
	Effects   []provider
	Replays   []any // replays of dead letters and of archived events
}

// provider counts the effects in doubt whose keys have the same beginning.
type provider struct {
	Name string
	N    int
}

// maxNodes is how many nodes a column of the pipeline has.
const maxNodes = 6

func (q *request) overview() error {
	j := q.judge()
	s := j.Snapshot
	o := overview{Judgement: j, MoreNodes: map[string]int{}, Consumers: s.Consumers, Effects: providers(s)}
	for _, r := range q.replays(false) {
		o.Replays = append(o.Replays, r)
	}
	for _, r := range q.archiveReplays(false) {
		o.Replays = append(o.Replays, r)
	}
	if s.Outbox != nil {
		o.Topics, o.Relays = figures.TroubleFirst(s.Outbox.Topics), s.Outbox.Relays
	}
	o.Topics = cut(&o, "topics", o.Topics)
	o.Relays = cut(&o, "relays", o.Relays)
	o.Consumers = cut(&o, "consumers", o.Consumers)
	o.Effects = cut(&o, "effects", o.Effects)
	o.Lines = map[string]int{
		"topics": max(len(o.Topics), len(o.Relays)), "relays": max(len(o.Relays), len(o.Consumers)), "consumers": max(len(o.Consumers), len(o.Effects)),
	}
	q.render(200, "page_overview.html", "Overview", "overview", o)
	return nil
}

// cut returns the nodes that the picture has room for, and counts the others.
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
			all = append(all, provider{Name: name})
		}
		all[i].N++
	}
	slices.SortStableFunc(all, func(a, b provider) int { return b.N - a.N })
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
