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

// outboxPage is the data of page_outbox.html.
type outboxPage struct {
	Report *outboxadmin.Report
	Topics []figures.Topic
	More   int            // topics that are not shown
	Others figures.Course // of topics that relays count together
	Known  bool           // a relay has counted within the hour
	Since  time.Time      // what relays published before is not known
	figures.Shares
	Failed  outboxadmin.Sample
	Failure string // why the groups are not known
	Events  []outboxadmin.Event
	Group   string
	Command string // a command that lists all events of the group

	Delayed    []outboxadmin.Event // those that are due next
	AllDelayed string              // a command that lists all of them; "": these are all
	NotListed  string              // why they are not listed
}

const (
	// maxListed is how many rows a list has, and maxTopics how many topics the page shows.
	maxListed = 50
	// maxDelayed is how many delayed events the page of the outbox has.
	maxDelayed = 20
	maxTopics  = 200
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
		p.Shares = figures.Share(s.Outbox, s.Relays)
		var err error
		if p.Failed, err = q.outboxSample("dead", "retrying"); err != nil {
			p.Failure = format.Error(err)
		}
		p.Delayed, err = read(q, "outbox delayed", figures.Fresh, func(ctx context.Context, db *database) ([]outboxadmin.Event, error) {
			return outboxadmin.List(ctx, db.Pool, db.Schema, outboxadmin.Listing{States: []string{"delayed"}, Limit: maxDelayed + 1})
		})
		if err != nil {
			p.NotListed = format.Error(err)
		}
		if len(p.Delayed) > maxDelayed {
			p.Delayed, p.AllDelayed = p.Delayed[:maxDelayed], q.db.Reach.Command("", "outbox", "list", "--state", "delayed")
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
