package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/payload"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// keysPage is the data of page_keys.html.
type keysPage struct {
	Asked   string
	Entries []idempotencykey.Entry
	More    bool
	One     *idempotencykey.Entry
	Headers []mask.Header
	Body    mask.Body
	Unused  bool // the tables do not exist

	Searched int    // how many answers were searched for the key
	Command  string // a command that searches all
}

func (q *request) keys() error {
	p := keysPage{Asked: strings.TrimSpace(q.r.URL.Query().Get("key"))}
	if p.Unused = !q.snapshot().There["idempotencykey"]; p.Unused || !filter.Usable(p.Asked) {
		q.render(http.StatusOK, "page_keys.html", "Keys", "keys", p)
		return nil
	}
	var err error
	if p.Asked != "" {
		p.Searched, p.Command = idempotencykey.Searched, q.db.Reach.Command(p.Asked, "keys", "show")
		var a payload.Answers
		a, err = q.key(p.Asked)
		p.Entries, p.Body = a.Entries, a.Body
	} else {
		p.Entries, err = read(q, "keys", figures.Fresh, func(ctx context.Context, db *database) ([]idempotencykey.Entry, error) {
			return idempotencykey.List(ctx, db.Pool, db.Schema, idempotencykey.Listing{Limit: maxListed + 1})
		})
	}
	if err != nil {
		return err
	}
	if p.More = len(p.Entries) > maxListed; p.More {
		p.Entries = p.Entries[:maxListed]
	}
	if p.Asked != "" && len(p.Entries) == 1 {
		p.One = &p.Entries[0]
		p.Body, err = q.reveal(p.Body, func(ctx context.Context, by operator.By) error {
			return idempotencykey.AuditReveal(ctx, q.db.Pool, q.db.Schema, *p.One, idempotencykey.By{Actor: by.Actor})
		})
		if err != nil {
			return err
		}
		p.Headers = q.mask.Answer(p.One.Header)
	}
	q.render(http.StatusOK, "page_keys.html", "Keys", "keys", p)
	return nil
}

func (q *request) key(key string) (payload.Answers, error) {
	return read(q, "key "+key, figures.Fresh, func(ctx context.Context, _ *database) (payload.Answers, error) { return q.payloads().Answers(ctx, key) })
}

var forgetFields = []string{"id"}

func planForget(q *request, f url.Values) (plan, error) {
	id := f.Get("id")
	if id == "" || !filter.Usable(id) || !q.snapshot().There["idempotencykey"] {
		return plan{}, errNotFound
	}
	a, err := q.key(id)
	found := a.Entries
	if err != nil {
		return plan{}, err
	}
	p := plan{Verb: "Forget the answer", Danger: true, Back: "/keys", Command: q.db.Reach.Command(id, "keys", "forget")}
	if len(found) != 1 {
		p.Question, p.Nothing = "Forget an answer?", "The answer is not stored any more."
		return p, nil
	}
	p.Seen, p.Changed = found[0].Created.String(), "Another answer is stored now: look at it."
	p.Question = "Forget the answer to " + found[0].Request + " with the key " + found[0].Key + "?"
	p.Explain = "A request that is repeated with this key is executed again, also if the first one's writes are committed: undo those first, unless the answer is a rejection."
	return p, nil
}
