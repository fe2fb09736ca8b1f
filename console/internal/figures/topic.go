package figures

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Topic is one of the outbox, with what relays published of it.
type Topic struct {
	outboxadmin.TopicReport
	Course
}

// Relay is a relay, with what it published.
type Relay struct {
	outboxadmin.RelayReport
	Course
}

// lookAtFlows adds what relays published. It is not known where the journal is not there yet, or this role may not read it.
func (db Source) lookAtFlows(ctx context.Context, s *Snapshot) error {
	flows, _, err := cache.Get(ctx, db.Cache, "outbox flows", freshFlows, func(ctx context.Context) (outboxadmin.Flows, error) {
		found, err := outboxadmin.InspectFlows(ctx, db.Pool, db.Schema)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "42501") {
			err = nil
		}
		return found, err
	})
	if err != nil {
		return err
	}
	s.Published = flows.Since
	s.Topics, s.Others = topics(s.Outbox, flows)
	courses := map[string]Course{}
	for _, f := range flows.Relays {
		courses[f.Relay] = published(flows, f)
	}
	for _, r := range s.Outbox.Relays {
		s.Relays = append(s.Relays, Relay{r, courses[r.ID]})
	}
	return nil
}

func published(flows outboxadmin.Flows, of outboxadmin.Flow) Course {
	c := Course{Now: flows.Now}
	for _, m := range of.Minutes {
		c.Minutes = append(c.Minutes, Passed{m.At, m.Published})
	}
	return c
}

// topics are those of which events wait or were sent, and the sum of the others: those that do not flow, then those with failed events,
// then the fullest, then the busiest.
func topics(waiting *outboxadmin.Report, flows outboxadmin.Flows) (all []Topic, others Course) {
	courses := map[string]Course{}
	for _, f := range flows.Topics {
		courses[f.Topic] = published(flows, f)
	}
	others = courses[""]
	delete(courses, "")
	for _, t := range waiting.Topics {
		all = append(all, Topic{t, courses[t.Topic]})
		delete(courses, t.Topic)
	}
	for name, course := range courses {
		all = append(all, Topic{waiting.Topic(name), course})
	}
	rank := func(t Topic) int {
		switch {
		case t.State == outboxadmin.TopicFailing:
			return 0
		case t.State != "":
			return 1
		case t.Failed.N > 0:
			return 2
		}
		return 3
	}
	slices.SortFunc(all, func(a, b Topic) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Pending.N, a.Pending.N), cmp.Compare(b.PerSecond(), a.PerSecond()), cmp.Compare(a.Topic, b.Topic))
	})
	return all, others
}
