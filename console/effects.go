package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/payload"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/effect"
)

// effectsPage is the data of page_effects.html.
type effectsPage struct {
	State   string
	States  []string
	Entries []effect.Entry
	More    bool   // there are more than are listed
	Newest  bool   // the newest call is first, and the last 10,000 were searched
	Command string // a command that lists all
	One     *effect.Entry
	Body    mask.Body // of the effect's response
	EventID string    // the event's ID at the end of the key
	Unused  bool      // the ledger's tables do not exist
}

func (q *request) effects() error {
	p := effectsPage{State: q.r.URL.Query().Get("state"), States: effect.States}
	if p.State == "" {
		p.State = "open"
	}
	if !slices.Contains(effect.States, p.State) {
		return errNotFound
	}
	if p.Unused = !q.snapshot().There["effect"]; p.Unused {
		q.render(http.StatusOK, "page_effects.html", "Effects", "effects", p)
		return nil
	}
	p.Newest = p.State == "done" || p.State == "not_done" || p.State == "all" // states in which effects wait for nobody
	p.Command = q.db.Reach.Command("", "effect", "list", "--state", p.State)
	var err error
	p.Entries, err = read(q, "effects "+p.State, figures.Fresh, func(ctx context.Context, db *database) ([]effect.Entry, error) {
		return figures.Effects(ctx, db.Source, effect.Listing{State: p.State, Limit: maxListed + 1, Newest: p.Newest})
	})
	if err != nil {
		return err
	}
	if p.More = len(p.Entries) > maxListed; p.More {
		p.Entries = p.Entries[:maxListed]
	}
	if key := q.r.URL.Query().Get("key"); key != "" {
		one, err := q.effect(key)
		if err != nil {
			return err
		}
		p.One, p.EventID = &one.Entry, one.Key[strings.LastIndexAny(one.Key, "/:")+1:]
		p.Body, err = q.reveal(one.Body, func(ctx context.Context, by operator.By) error {
			return effect.AuditReveal(ctx, q.db.Pool, q.db.Schema, one.Entry, by.Actor)
		})
		if err != nil {
			return err
		}
	}
	q.render(http.StatusOK, "page_effects.html", "Effects", "effects", p)
	return nil
}

// effect returns the effect with this key.
func (q *request) effect(key string) (payload.Effect, error) {
	if !filter.Usable(key) {
		return payload.Effect{}, errNotFound
	}
	e, err := read(q, "effect "+key, figures.Fresh, func(ctx context.Context, _ *database) (payload.Effect, error) { return q.payloads().Effect(ctx, key) })
	if err == nil && e.Key == "" {
		err = errNotFound
	}
	return e, err
}

var resolveFields = []string{"key", "happened"}

func planResolve(q *request, f url.Values) (plan, error) {
	e, err := q.effect(f.Get("key"))
	if err != nil {
		return plan{}, err
	}
	p := plan{Back: "/effects?" + url.Values{"key": {e.Key}}.Encode(), Seen: fmt.Sprint(e.State, e.Conflicts, e.Calls, e.CalledAt.UnixMicro()), Changed: "The effect changed meanwhile: look at it again."}
	flag := "--done"
	switch f.Get("happened") {
	case "yes":
		p.Question, p.Verb, p.Response = "Record that "+e.Key+" happened?", "Record that it happened", true
		p.Explain = "It is not called again. The event completes at its next delivery. A late answer of the call itself still counts."
		if text := act.Response(f); text != "" && !json.Valid([]byte(text)) {
			p.Wrong = `The response is not JSON: want what the call would have returned, such as "a text" or {"id": 1}.`
		}
	case "no":
		p.Question, p.Verb, flag = "Record that "+e.Key+" did not happen?", "Record that it did not happen", "--not-done"
		p.Explain = "Choose this only if it cannot happen any more. It is then called again, with the same idempotency key. If you do not know, do not decide: nothing is lost meanwhile."
	default:
		return p, errNotFound
	}
	if e.State != "doubt" && e.Conflicts == 0 {
		p.Nothing = "It is not in doubt: " + e.State + "."
	}
	p.Command = q.db.Reach.Command(e.Key, "effect", "resolve", flag)
	return p, nil
}
