package explain

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

const (
	// outputsPatience is the default limit for searching outputs, because an archive may be large.
	outputsPatience = 10 * time.Second
	maxOutputs      = 100
	maxEffects      = 1000
)

// evidence is what the tables hold about an event. A nil field was not queried, because its tables do not exist.
type evidence struct {
	reach.Reach
	inSchema string
	eventID  string
	due      time.Time
	outbox   *[]outboxadmin.Location
	landing  *outboxadmin.LandingReport // nil if there is neither a slot nor a marker
	unread   bool                       // reading it took too long
	copies   []outboxadmin.Location     // made for dead letters
	passedOn []outboxadmin.Location     // published by a handler of the event, under its ID
	claims   *[]deadletter.Location
	failed   []deadletter.Event
	effects  *[]effect.Entry
	now      time.Time
	metadata map[string]string

	outputs *[]outboxadmin.Output
	endless bool // searching them took too long
	within  time.Duration
	kept    time.Time // since when published events are archived; zero: they are not
}

// identify gathers the evidence for an ID. The ID may be a UUID in another spelling than the event's, or a record's ID, as doctor prints
// it.
func (x asked) identify(ctx context.Context, id string) (*evidence, error) {
	canonical := id
	if parsed, err := uuid.Parse(id); err == nil {
		canonical = parsed.String()
	}
	e, err := x.gather(ctx, id)
	if err == nil && id != canonical && !e.spelt() {
		e, err = x.gather(ctx, canonical)
	}
	if err != nil || e.claims == nil {
		return e, err
	}
	for _, l := range *e.claims {
		if l.Failed != nil && l.Failed.EventID != e.eventID {
			return x.gather(ctx, l.Failed.EventID)
		}
	}
	return e, nil
}

// spelt reports whether something is known under exactly this spelling. A record does not count, because it is the same for every
// spelling.
func (e *evidence) spelt() bool {
	return e.outbox != nil && len(*e.outbox) > 0 || len(e.copies) > 0 || e.effects != nil && len(*e.effects) > 0 ||
		e.claims != nil && slices.ContainsFunc(*e.claims, func(l deadletter.Location) bool {
			return l.Holder != nil || len(l.Audit) > 0 || l.Failed != nil && l.Failed.EventID == e.eventID
		})
}

// gather queries every component that has tables.
func (x asked) gather(ctx context.Context, eventID string) (*evidence, error) {
	e := &evidence{Reach: x.reach, inSchema: x.schema, eventID: eventID, due: x.due, within: cmp.Or(x.patience, outputsPatience)}
	if err := x.pool.QueryRow(ctx, `select now()`).Scan(&e.now); err != nil {
		return nil, err
	}
	if x.there["outbox"] {
		found, complete, err := outboxadmin.FindWithin(ctx, x.pool, x.schema, eventID, x.patience)
		if err != nil {
			return nil, err
		}
		if e.landing, err = outboxadmin.InspectLanding(ctx, x.pool, x.schema); err != nil {
			return nil, err
		}
		e.unread = !complete
		e.sort(found)
	}
	if x.there["claim"] {
		var err error
		if e.failed, err = deadletter.Show(ctx, x.pool, x.schema, eventID, ""); err != nil {
			return nil, err
		}
		for _, f := range e.failed {
			e.learn(f.Metadata)
		}
		found, err := deadletter.Find(ctx, x.pool, x.schema, claim.Key{EventID: eventID, Due: e.due, Order: e.key()})
		if err != nil {
			return nil, err
		}
		e.claims = &found
	}
	if x.there["effect"] {
		found, err := effect.List(ctx, x.pool, x.schema, effect.Listing{State: "all", EventID: eventID, Limit: maxEffects})
		if err != nil {
			return nil, err
		}
		e.effects = &found
	}
	if len(e.passedOn) > 0 && !e.arrived() { // its record has expired
		*e.outbox = append(*e.outbox, e.passedOn...)
	}
	return e, x.gatherOutputs(ctx, e)
}

// sort separates the event itself from its copies as a dead letter, and from its copies that a handler has published under its ID.
func (e *evidence) sort(found []outboxadmin.Location) {
	own := []outboxadmin.Location{}
	for _, l := range found {
		if l.Metadata[claim.DeadConsumerMetadata] != "" {
			e.copies = append(e.copies, l)
		} else if l.Metadata[outbox.CauseMetadata] == e.eventID {
			e.passedOn = append(e.passedOn, l)
		} else {
			own = append(own, l)
		}
	}
	e.outbox = &own
	for _, l := range own {
		e.learn(l.Metadata)
		if l.State == "delayed" {
			e.due = *l.At
		}
	}
}

// gatherOutputs searches for what the handlers that have completed published. It was written when they claimed the event, or later.
func (x asked) gatherOutputs(ctx context.Context, e *evidence) error {
	since, completed := e.completed()
	if e.outbox == nil || !completed {
		return nil
	}
	days, err := pgdays.Table{Schema: x.schema, Name: "outbox_archive"}.Days(ctx, x.pool)
	if err != nil {
		return err
	}
	if len(days) > 0 {
		e.kept = days[0].Date
	}
	found, err := outboxadmin.FindOutputs(ctx, x.pool, x.schema, e.eventID, since, e.within, maxOutputs)
	var pgErr *pgconn.PgError
	if e.endless = errors.As(err, &pgErr) && pgErr.Code == "57014"; e.endless {
		return nil
	}
	found = slices.DeleteFunc(found, func(o outboxadmin.Output) bool { return o.Metadata[claim.DeadConsumerMetadata] != "" })
	e.outputs = &found
	return err
}

// completed reports whether a consumer has handled the event, and when the first one claimed it.
func (e *evidence) completed() (since time.Time, completed bool) {
	if e.claims == nil {
		return since, false
	}
	for _, l := range *e.claims {
		if a := decision(l); l.Claimed == nil || l.Failed != nil || a != nil && a.Action != "replay" {
			continue
		}
		if !completed || l.Claimed.Before(since) {
			since, completed = *l.Claimed, true
		}
	}
	return since, completed
}

// learn stores the event's metadata.
func (e *evidence) learn(metadata map[string]string) {
	if e.metadata == nil {
		e.metadata = metadata
	}
	if at, err := time.Parse(time.RFC3339Nano, metadata[outbox.DueMetadata]); err == nil {
		e.due = at
	}
}

func (e *evidence) key() string {
	if e.outbox != nil {
		for _, l := range *e.outbox {
			return l.Key
		}
	}
	for _, f := range e.failed {
		if f.Key != "" {
			return f.Key
		}
	}
	return e.metadata[transport.KeyMetadata]
}

func (e *evidence) topic() string {
	if e.outbox != nil {
		for _, l := range *e.outbox {
			return l.Topic
		}
	}
	for _, f := range e.failed {
		return f.Topic
	}
	return ""
}

// cause returns the ID of the event whose handler published this one.
func (e *evidence) cause() string {
	if id := e.metadata[outbox.CauseMetadata]; id != e.eventID {
		return id
	}
	return ""
}

// trace returns the event's trace ID, from W3C's traceparent header.
func (e *evidence) trace() string {
	if parts := strings.Split(e.metadata["traceparent"], "-"); len(parts) == 4 {
		return parts[1]
	}
	return ""
}
