package console

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/console/internal/bucket"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/internal/operator"
)

// Rights are the rights of a user. Without Look the other rights have no effect.
type Rights uint8

const (
	// Look allows a user to see metadata: IDs, keys, topics, states, errors, headers, times and counts.
	Look Rights = 1 << iota
	// Payloads allows a user to see payloads, and the responses of effects and requests. Each time the audit notes who sees which.
	Payloads
	// Act allows a user to replay, discard, pause, resume and decide.
	Act
)

// Has reports whether r includes all of the rights.
func (r Rights) Has(all Rights) bool { return r&all == all }

// String describes the rights in words.
func (r Rights) String() string {
	text := "may not look"
	if r.Has(Look) {
		text = "may look"
	}
	if r.Has(Look | Act) {
		text = "may act"
	}
	if !r.Has(Payloads) {
		text += ", payloads hidden"
	}
	return text
}

// Loopback returns a function for Config.Authorize that gives the rights to requests from this machine, and none to others.
// Everybody who can log in to this machine has them. It refuses requests that say that a proxy has forwarded them, because their
// sender is unknown, and those of HTTP/1.0, which some proxies send. It cannot detect a proxy on this machine that speaks HTTP/1.1
// and sets none of these headers: everything that such a proxy forwards has the rights. It also refuses requests whose Host is not this machine, so that a
// foreign web site cannot reach the console through a browser.
func Loopback(rights Rights, user string) func(*http.Request) (Rights, string) {
	return func(r *http.Request) (Rights, string) {
		if !guard.FromThisMachine(r) {
			return 0, ""
		}
		return rights, user
	}
}

// authorize returns the rights and the name of the request's sender.
func (c *Console) authorize(r *http.Request) (Rights, string) {
	rights, user := c.cfg.Authorize(r)
	if c.cfg.ReadOnly || user == "" {
		rights &^= Act
	}
	if user == "" { // whom the audit could name
		rights &^= Payloads
	}
	if !rights.Has(Look) {
		return 0, ""
	}
	return rights, user
}

// errTooOften means that the user has to wait.
var errTooOften = errors.New("you do this too often")

// wait takes one of the user's tokens. If there is none, it returns how many seconds to wait for one, and sets the header Retry-After.
func (q *request) wait(of *bucket.Buckets) (seconds int) {
	if wait := of.Take(time.Now(), q.user); wait > 0 {
		seconds = int(math.Ceil(wait.Seconds()))
		q.w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	return seconds
}

// reveal returns the payload covered, unless the user has asked to see it. Then it audits that, and returns the payload only if it could.
func (q *request) reveal(b mask.Body, note func(ctx context.Context, by operator.By) error) (mask.Body, error) {
	if !q.rights.Has(Payloads) {
		b = q.mask.Body(nil, b.Bytes, false)
	}
	switch {
	case !q.posted():
		return mask.Body{Hidden: b.Hidden, Bytes: b.Bytes, Covered: b.Hidden == ""}, nil
	case b.Hidden != "":
		return b, fmt.Errorf("%w: %s", errForbidden, b.Hidden)
	}
	if seconds := q.wait(q.reveals); seconds > 0 {
		return b, fmt.Errorf("%w: wait %s", errTooOften, format.Plural(seconds, "second", "seconds"))
	}
	ctx, cancel := context.WithTimeout(q.ctx(), q.cfg.Timeout)
	defer cancel()
	if err := note(ctx, operator.By{Actor: q.user}); err != nil {
		return b, fmt.Errorf("it is not shown, because the audit could not note it: %w", err)
	}
	return b, nil
}
