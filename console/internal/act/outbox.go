package act

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// OutboxRetry flags the failed events of a group for a retry.
func OutboxRetry(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	n, err := outboxadmin.Retry(ctx, db.Pool, db.Schema, outboxadmin.Selection{Group: f.Get("group")}, by)
	return Outcome{Headline: format.Plural(n, "event", "events") + " will be retried by a running relay.", Back: "/outbox"}, err
}

// OutboxDiscard flags the failed events of a group to be discarded.
func OutboxDiscard(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	n, err := outboxadmin.Discard(ctx, db.Pool, db.Schema, outboxadmin.Selection{Group: f.Get("group")}, by)
	return Outcome{Headline: format.Plural(n, "event", "events") + " will be discarded by a running relay.", Back: "/outbox"}, err
}

// Pause pauses the topic that the form names.
func Pause(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	err := outboxadmin.PauseTopic(ctx, db.Pool, db.Schema, f.Get("topic"), by)
	return Outcome{Headline: "Topic " + f.Get("topic") + " is paused.", Back: "/outbox"}, err
}

// Resume resumes the topic that the form names.
func Resume(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	err := outboxadmin.ResumeTopic(ctx, db.Pool, db.Schema, f.Get("topic"), by)
	if errors.Is(err, outboxadmin.ErrNotSet) {
		return Outcome{Headline: "Topic " + f.Get("topic") + " was not paused.", Back: "/outbox"}, nil
	}
	return Outcome{Headline: "Topic " + f.Get("topic") + " is resumed.", Back: "/outbox"}, err
}

// Archive begins a replay of the archive, which this console continues.
func Archive(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	moment := func(text string) time.Time {
		at, _ := time.Parse(time.RFC3339, text) // the plan has written it; "" is the zero time
		return at
	}
	get := func(name string) string { return strings.TrimSpace(f.Get(name)) }
	id, err := outboxadmin.BeginReplay(ctx, db.Pool, db.Schema, outboxadmin.ReplayConfig{
		ArchiveSelection: outboxadmin.ArchiveSelection{Topic: get("topic"), Key: get("key"), Since: moment(get("since")), Until: moment(get("until"))},
		To:               get("to"), Rate: replays.ArchivePace(f, replays.Usual.Rate).Pace.Rate,
	}, by)
	if err != nil {
		return Outcome{}, err
	}
	db.continueArchive(id)
	return Outcome{Headline: fmt.Sprintf("Replay %d of the archive has begun.", id), Page: replays.ArchivePage(id)}, nil
}

// ArchiveStop stops a replay of the archive.
func ArchiveStop(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err == nil {
		err = outboxadmin.StopReplay(ctx, db.Pool, db.Schema, id, by)
	}
	return Outcome{Headline: fmt.Sprintf("Replay %d of the archive was stopped.", id), Page: replays.ArchivePage(id)}, err
}

// ArchiveContinue lets a replay of the archive go on, or changes its rate.
func ArchiveContinue(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	var before outboxadmin.ReplayStatus
	if err == nil {
		before, err = outboxadmin.ShowReplay(ctx, db.Pool, db.Schema, id)
	}
	rate := replays.ArchivePace(f, before.Rate).Pace.Rate
	switch {
	case err != nil:
	case runs(f):
		err = stopped(outboxadmin.ChangeRate(ctx, db.Pool, db.Schema, id, rate, by), outboxadmin.ErrNoSuchReplay)
	default:
		err = outboxadmin.ResumeReplay(ctx, db.Pool, db.Schema, id, rate, by)
	}
	if err == nil {
		db.continueArchive(id)
	}
	return Outcome{Headline: fmt.Sprintf("Replay %d of the archive goes on.", id), Page: replays.ArchivePage(id)}, err
}

// continueArchive continues a replay of the archive, as continueReplay does one of dead letters.
func (db *Database) continueArchive(id int64) {
	db.ArchiveJobs.Persist(db.Log, "replay of the archive", id, outboxadmin.ErrNoSuchReplay, func(ctx context.Context) ([]any, error) {
		r, err := outboxadmin.ContinueReplay(ctx, db.Pool, db.Schema, id)
		return []any{"state", r.State, "replayed", r.Events}, err
	})
}
