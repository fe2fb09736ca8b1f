package console

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// keysPage is the content of the page of idempotency keys.
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
		p.Entries, err = q.key(p.Asked)
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
		p.Body, err = q.reveal(q.mask.Body(p.One.Body, p.One.Bytes, q.rights.Has(Payloads)), func(ctx context.Context, by operator.By) error {
			return idempotencykey.AuditReveal(ctx, q.db.Pool, q.db.Schema, *p.One, idempotencykey.By{Actor: by.Actor})
		})
		if err != nil {
			return err
		}
		for _, k := range slices.Sorted(maps.Keys(p.One.Header)) {
			v := strings.Join(p.One.Header[k], ", ")
			if q.mask[strings.ToLower(k)] || strings.EqualFold(k, "Set-Cookie") || strings.EqualFold(k, "Authorization") {
				v = mask.Masked
			}
			p.Headers = append(p.Headers, mask.Header{Name: k, Value: v})
		}
	}
	q.render(http.StatusOK, "page_keys.html", "Keys", "keys", p)
	return nil
}

func (q *request) key(key string) ([]idempotencykey.Entry, error) {
	return read(q, "key "+key, figures.Fresh, func(ctx context.Context, db *database) ([]idempotencykey.Entry, error) {
		return idempotencykey.ShowNewest(ctx, db.Pool, db.Schema, key)
	})
}

var forgetFields = []string{"id"}

func planForget(q *request, f url.Values) (plan, error) {
	id := f.Get("id")
	if id == "" || !filter.Usable(id) || !q.snapshot().There["idempotencykey"] {
		return plan{}, errNotFound
	}
	found, err := q.key(id)
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
