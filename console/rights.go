package console

import (
	"net/http"

	"github.com/millrace-go/millrace/console/internal/guard"
)

// Rights are the rights of a user. Without Look the other rights have no effect.
type Rights uint8

const (
	// Look allows a user to see metadata: IDs, keys, topics, states, errors, headers, times and counts.
	Look Rights = 1 << iota
	// Payloads allows a user to see payloads, and the responses of effects and requests.
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
// sender is unknown, and those of HTTP/1.0, which some proxies send. But a proxy on this machine that speaks HTTP/1.1 and sets no
// header is this machine: all that it forwards has the rights. It also refuses requests whose Host is not this machine, so that a
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
	if !rights.Has(Look) {
		return 0, ""
	}
	return rights, user
}
