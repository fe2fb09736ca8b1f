package act

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// What can be replayed is dead or waits for a retry, and what can be discarded may be blocked, too.
var (
	Replayable  = []string{"dead", "retrying"}
	Discardable = []string{"dead", "retrying", "blocked"}
)

// Replay begins a replay of dead letters, which this console continues.
func Replay(ctx context.Context, db *Database, form url.Values, by operator.By) (Outcome, error) {
	id, err := deadletter.BeginReplay(ctx, db.Pool, db.Schema, Selected(filter.FromQuery(form), Replayable), replays.PaceOf(form, replays.Usual).Pace, by)
	if err != nil {
		return Outcome{}, err
	}
	db.continueReplay(id)
	return Outcome{Headline: fmt.Sprintf("Replay %d has begun.", id), Page: replays.Page(id)}, nil
}

func (db *Database) continueReplay(id int64) {
	db.Jobs.Persist(db.Log, "replay", id, deadletter.ErrNoSuchReplay, func(ctx context.Context) ([]any, error) {
		r, err := deadletter.ContinueReplay(ctx, db.Pool, db.Schema, id, nil)
		return []any{"state", r.State, "reason", r.Reason, "replayed", r.Replayed}, err
	})
}

// Stop stops a replay of dead letters.
func Stop(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err == nil {
		err = deadletter.StopReplay(ctx, db.Pool, db.Schema, id, by)
	}
	return Outcome{Headline: fmt.Sprintf("Replay %d was stopped.", id), Page: replays.Page(id)}, err
}

// Continue lets a replay of dead letters go on, or changes its pace.
func Continue(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	given := replays.PaceOf(f, deadletter.Pace{}).Pace
	switch {
	case err != nil:
	case !replays.HasPace(f): // it keeps its pace
		err = deadletter.ResumeReplay(ctx, db.Pool, db.Schema, id, nil, by)
	case runs(f):
		err = stopped(deadletter.ChangePace(ctx, db.Pool, db.Schema, id, given, by), deadletter.ErrNoSuchReplay)
	default:
		err = deadletter.ResumeReplay(ctx, db.Pool, db.Schema, id, &given, by)
	}
	if err == nil {
		db.continueReplay(id)
	}
	return Outcome{Headline: fmt.Sprintf("Replay %d goes on.", id), Page: replays.Page(id)}, err
}

// runs reports whether the user has seen that the replay runs: then a stop that comes before this action must last.
func runs(f url.Values) bool { return strings.HasPrefix(f.Get("seen"), deadletter.ReplayRunning) }

// stopped returns ErrChanged if the replay does not run any more.
func stopped(err, gone error) error {
	if errors.Is(err, gone) {
		return fmt.Errorf("%w: the replay stopped", ErrChanged)
	}
	return err
}

// Selected is what an action changes of what a filter selects: events in these states alone. The plan has fixed the filter's times.
func Selected(f filter.Filter, states []string) deadletter.Selection {
	s := f.Selection(time.Time{})
	s.States = words.ClaimStates.Named(f.State(), states...)
	return s
}

// Discard discards the selected events.
func Discard(ctx context.Context, db *Database, form url.Values, by operator.By) (Outcome, error) {
	f := filter.FromQuery(form)
	r, err := deadletter.Discard(ctx, db.Pool, db.Schema, Selected(f, Discardable), by)
	if err != nil && r.Done > 0 {
		err = fmt.Errorf("%s, then: %w", format.Plural(r.Done, "event was discarded", "events were discarded"), err)
	}
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Headline: format.Plural(r.Done, "event was discarded.", "events were discarded."), Back: "/dead?" + f.With("event", "").Query().Encode()}
	add := func(n int, text string) {
		if n > 0 {
			o.Lines = append(o.Lines, Line{int64(n), text})
		}
	}
	add(r.Behind, "of them wait behind an earlier event of their key, and follow it")
	add(r.InFlight, "were being handled, or were changed by somebody else, and were left")
	total, order := words.ClaimStates.Count(r.Others)
	for _, state := range order {
		add(total[state], "in state "+state+" were left")
	}
	return o, nil
}

// Typed returns the text that the user entered. Browsers send line ends as \r\n.
func Typed(f url.Values) string { return strings.ReplaceAll(f.Get("payload"), "\r\n", "\n") }

// Payload returns the payload for a text: JSON without the spaces of the form.
func Payload(text string) []byte {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return []byte(text)
	}
	return b.Bytes()
}

// Edit writes a failed event's payload.
func Edit(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	id, consumer := f.Get("id"), f.Get("consumer")
	err := deadletter.Edit(ctx, db.Pool, db.Schema, id, consumer, deadletter.Change{Payload: Payload(Typed(f)), Former: f.Get("former")}, by)
	return Outcome{Headline: "The payload of " + id + " is written. Replay the event when you are ready.", Back: "/dead/event?" + url.Values{"id": {id}, "consumer": {consumer}}.Encode()}, err
}
