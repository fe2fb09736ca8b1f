// Package act carries out what people do with the console, after they have confirmed it.
package act

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/jobs"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Database is a database that people act on.
type Database struct {
	figures.Source
	Jobs        *jobs.Jobs // replays of dead letters that this console continues
	ArchiveJobs *jobs.Jobs // replays of the archive that this console continues
	Log         *slog.Logger
}

// ErrChanged means that what the user has decided about changed while the action ran. Nothing was done.
var ErrChanged = errors.New("it changed meanwhile")

// Line counts a part of the events of an action.
type Line struct {
	N    int64
	Text string
}

// Sum returns the number of events of all lines.
func Sum(lines []Line) (n int64) {
	for _, l := range lines {
		n += l.N
	}
	return n
}

// Outcome is the result of an action.
type Outcome struct {
	Headline string
	Lines    []Line
	Back     string // the previous page, below the database's base
	Page     string // a page with the details, instead of the lines
}

// Response returns the response that the user entered, or "".
func Response(f url.Values) string { return strings.TrimSpace(f.Get("response")) }

// Resolve records whether an effect happened.
func Resolve(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	d := effect.Resolution{Done: f.Get("happened") == "yes", By: by.Actor, Note: by.Note}
	if text := Response(f); text != "" && d.Done {
		d.Response = json.RawMessage(text)
	}
	said := " did not happen."
	if d.Done {
		said = " happened."
	}
	err := effect.Resolve(ctx, db.Pool, db.Schema, f.Get("key"), d)
	return Outcome{Headline: "Recorded that " + f.Get("key") + said, Back: "/effects"}, err
}

// Forget forgets the answer to an idempotency key.
func Forget(ctx context.Context, db *Database, f url.Values, by operator.By) (Outcome, error) {
	e, err := idempotencykey.Forget(ctx, db.Pool, db.Schema, f.Get("id"), idempotencykey.By{Actor: by.Actor, Note: by.Note})
	return Outcome{Headline: "The answer to " + e.Request + " with the key " + e.Key + " was forgotten.", Back: "/keys"}, err
}

// Expected is a number of events as a form has it: with "+" if counting stopped early.
func Expected(n outboxadmin.Count) string { return strings.ReplaceAll(format.Count(n), ",", "") }

// NumberDiffers returns how the number that a form has confirmed differs from n, or "".
func NumberDiffers(form url.Values, n outboxadmin.Count) string {
	before := form.Get("expected")
	if before == Expected(n) {
		return ""
	}
	digits, atLeast := strings.CutSuffix(before, "+")
	confirmed, _ := strconv.ParseInt(digits, 10, 64) // a wrong number differs, too
	return format.Count(n) + words.Pick(n.N, " event matches", " events match") + " now; you confirmed " + format.Count(outboxadmin.Count{N: confirmed, AtLeast: atLeast}) + "."
}
