package console

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/words"
)

var deadFields = filter.Names

var errFilter = errors.New("the filter is wrong")

func planReplay(q *request, f url.Values) (plan, error) {
	if why := q.snapshot().Errors["consumers"]; why != "" { // which replays run is not known
		return plan{}, errors.New(why)
	}
	at := replays.PaceOf(f, replays.Usual)
	p, err := q.planDead(f, act.Replayable, "replay", at.Flags()...)
	for _, name := range replays.Beside(q.replays(false), act.Selected(filter.FromQuery(f), act.Replayable)) {
		p.Warning = replays.Warn(p.Warning, name)
		p.Seen, p.Changed = p.Seen+" "+name, "A replay has started, or other events match now."
	}
	if p.N.N > 1 || p.N.AtLeast {
		p.Pace, p.Wrong = &at, at.Wrong
	}
	p.Question, p.Verb, p.Danger = "Replay "+p.Question, "Replay "+format.Events(p.N), p.N.AtLeast
	p.Explain = "They run again with all their attempts, in the order of their keys. A running service of the consumer handles them; until one runs they wait."
	return p, err
}

func planDiscard(q *request, f url.Values) (plan, error) {
	p, err := q.planDead(f, act.Discardable, "discard")
	p.Question, p.Verb, p.Danger = "Discard "+p.Question, "Discard "+format.Events(p.N), true
	p.Explain = "They are discarded for good and cannot be restored. Later events of their keys go on."
	s, atMost := q.snapshot(), int64(0)
	for _, c := range s.Consumers {
		atMost += int64(c.Dead + c.Retrying + c.Blocked)
	}
	if s.Errors["consumers"] != "" || s.Consumers == nil {
		atMost = math.MaxInt64 // there may be any number
	}
	p.tooMany(atMost)
	return p, err
}

// notCounted warns of an action on more events than the page has counted.
const notCounted = "Only the newest events were counted: the action takes all that match, and there may be many more."

// planDead counts what a filter selects, by its causes.
func (q *request) planDead(form url.Values, states []string, verb string, more ...string) (p plan, err error) {
	f := filter.FromQuery(form)
	if f.Err() != nil {
		return p, fmt.Errorf("%w: %w", errFilter, f.Err())
	}
	p.Back = "/dead?" + f.Query().Encode()
	if !q.snapshot().There["claim"] {
		return p, errNotFound
	}
	f = f.Fixed(q.snapshot().Now, form)
	selection := act.Selected(f, states)
	if len(selection.States) == 0 {
		p.Question = "these events?"
		p.Nothing = "Events in this state cannot be changed in this way: filter by a state that can, such as state:dead."
		return p, nil
	}
	sample, err := q.sample(f, selection)
	if err != nil {
		return p, err
	}
	p.N = matching(sample)
	p.Question = format.Count(p.N) + " " + words.Pick(p.N.N, "event?", "events?")
	if f.State() == "dead" {
		p.Question = format.Count(p.N) + " " + words.Pick(p.N.N, "dead letter?", "dead letters?")
	}
	if p.Of = figures.Scope(sample); p.N.AtLeast {
		p.Warning = notCounted // all that match are confirmed, whichever they are
	} else {
		p.Seen = sample.Digest
	}
	for _, g := range sample.Groups[:min(len(sample.Groups), 10)] {
		p.Lines = append(p.Lines, act.Line{N: int64(g.Events), Text: format.Cause(g.Text)})
	}
	if more := len(sample.Groups) - 10; more > 0 {
		p.Lines = append(p.Lines, act.Line{N: int64(sample.Events) - act.Sum(p.Lines), Text: "with " + format.Plural(more, "other cause", "other causes")})
	}
	flags, ids := f.Flags()
	if p.N.N > 1 || p.N.AtLeast {
		flags = append(flags, more...)
	}
	p.Command = q.db.Reach.CommandOf(ids, append([]string{"dead", verb}, flags...)...)
	switch {
	case !p.N.Known():
		p.Nothing = "None of the newest events matches, and the older ones are not searched here: narrow the filter by consumer, key, group or until, or run the command."
	case p.N.N == 0:
		p.Nothing = "No event matches any more."
	}
	return p, nil
}

// The outbox's failed events, by their group.

var outboxFields = []string{"group"}

func (q *request) planOutbox(f url.Values, verb string, states ...string) (p plan, err error) {
	group := f.Get("group")
	p.Back = "/outbox?" + url.Values{"group": {group}}.Encode()
	if q.snapshot().Outbox == nil || group == "" || !filter.Usable(group) {
		return p, errNotFound
	}
	sample, err := q.outboxSample(states...)
	if err != nil {
		return p, err
	}
	if p.N.AtLeast = sample.More; sample.More {
		p.Warning = notCounted
	}
	for _, g := range sample.Groups {
		if g.Group == group {
			p.N.N = int64(g.Events)
			if !sample.More {
				p.Seen = g.Digest
			}
			for _, part := range []act.Line{{N: int64(g.Dead), Text: "dead"}, {N: int64(g.Retrying), Text: "retrying"}, {N: int64(g.Discarded), Text: "discarded"}} {
				if part.N > 0 {
					p.Lines = append(p.Lines, act.Line{N: part.N, Text: part.Text + ": " + g.Text})
				}
			}
			if g.Discarded > 0 {
				p.Warning = strings.TrimSpace("Somebody has discarded " + format.Number(g.Discarded) + " of them. A retry publishes discarded events, too, although later events of their keys may have been published since. " + p.Warning)
			}
		}
	}
	p.Command = q.db.Reach.Command("", "outbox", verb, "--group", group)
	switch {
	case !p.N.Known():
		p.Nothing = "None of the newest events has this cause, and the older ones are not searched here: run the command."
	case p.N.N == 0:
		p.Nothing = "No event of this cause is left."
	}
	p.Question = format.Count(p.N) + " " + words.Pick(p.N.N, "event", "events") + " of the outbox?"
	p.Changed = "As many events match, but other ones, or somebody has acted on them."
	return p, nil
}

func planOutboxRetry(q *request, f url.Values) (plan, error) {
	p, err := q.planOutbox(f, "retry", "dead", "retrying", "discarded")
	p.Question, p.Verb, p.Danger = "Retry "+p.Question, "Retry "+format.Events(p.N), p.N.AtLeast
	p.Explain = "A relay that runs publishes them at once. Events behind them follow when they succeed."
	return p, err
}

func planOutboxDiscard(q *request, f url.Values) (plan, error) {
	p, err := q.planOutbox(f, "discard", "dead", "retrying")
	p.Question, p.Verb, p.Danger = "Discard "+p.Question, "Discard "+format.Events(p.N), true
	p.Explain = `They are not published, and events behind them go on. They are kept until "millrace outbox purge" deletes them.`
	return p, err
}
