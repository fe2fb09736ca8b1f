package console

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// outboxPage is the content of the page of the outbox.
type outboxPage struct {
	Report  *outboxadmin.Report
	Topics  []figures.Topic
	More    int            // topics that are not shown
	Others  figures.Course // of topics that relays count together
	Known   bool           // a relay has counted within the hour
	Since   time.Time      // what relays published before is not known
	Relays  []holder
	Free    []outboxadmin.ShardReport // shards with events and without a relay
	Suspect []outboxadmin.ShardReport
	Failed  outboxadmin.Sample
	Failure string // why the groups are not known
	Events  []outboxadmin.Event
	Group   string
	Command string // a command that lists all events of the group
}

// holder is a relay, with a cell for each shard.
type holder struct {
	figures.Relay
	Cells []*outboxadmin.ShardReport // nil where another one holds the shard
}

const (
	// maxListed is how many rows a list has, and maxTopics how many topics the page shows.
	maxListed = 50
	maxTopics = 200
)

func (q *request) outbox() error {
	s := q.snapshot()
	p := outboxPage{Report: s.Outbox, Group: q.r.URL.Query().Get("group")}
	if !filter.Usable(p.Group) {
		return errNotFound
	}
	if s.Outbox != nil {
		p.Topics, p.Others, p.Since = s.Topics[:min(len(s.Topics), maxTopics)], s.Others, s.Published
		p.More = len(s.Topics) - len(p.Topics)
		p.Known = len(s.Others.Minutes) > 0 || slices.ContainsFunc(s.Topics, func(t figures.Topic) bool { return len(t.Minutes) > 0 })
		p.share(s.Outbox, s.Relays)
		var err error
		if p.Failed, err = q.outboxSample("dead", "retrying"); err != nil {
			p.Failure = format.Error(err)
		}
		if p.Group != "" {
			p.Command = q.db.Reach.Command("", "outbox", "list", "--group", p.Group)
			p.Events, err = read(q, "outbox group "+p.Group, figures.Fresh, func(ctx context.Context, db *database) ([]outboxadmin.Event, error) {
				return outboxadmin.List(ctx, db.Pool, db.Schema, outboxadmin.Listing{States: []string{"dead", "retrying", "discarded"}, Group: p.Group, Limit: maxListed, Newest: true})
			})
			if err != nil {
				return err
			}
		}
	}
	q.render(200, "page_outbox.html", "Outbox", "outbox", p)
	return nil
}

// outboxSample returns the error groups of the outbox's newest failed events.
func (q *request) outboxSample(states ...string) (outboxadmin.Sample, error) {
	return read(q, "outbox sample "+strings.Join(states, ","), figures.Fresh, func(ctx context.Context, db *database) (outboxadmin.Sample, error) {
		return outboxadmin.SampleGroups(ctx, db.Pool, db.Schema, states...)
	})
}

// share gives each relay its shards.
func (p *outboxPage) share(r *outboxadmin.Report, relays []figures.Relay) {
	byName := map[string]int{}
	for _, relay := range relays {
		if relay.Alive {
			byName[relay.Name], byName[relay.ID] = len(p.Relays), len(p.Relays)
			p.Relays = append(p.Relays, holder{Relay: relay, Cells: make([]*outboxadmin.ShardReport, len(r.Shards))})
		}
	}
	for i, shard := range r.Shards {
		if shard.Suspect != "" || shard.UncleanTakeovers > 1 {
			p.Suspect = append(p.Suspect, shard)
		}
		at, known := byName[shard.Relay]
		if shard.Held && known {
			p.Relays[at].Cells[i] = &r.Shards[i]
		} else if shard.Pending.N > 0 {
			p.Free = append(p.Free, shard)
		}
	}
	slices.SortStableFunc(p.Relays, func(a, b holder) int { return b.Shards - a.Shards })
}
