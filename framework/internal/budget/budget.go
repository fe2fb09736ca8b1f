// Package budget shares the connections of a service's pool among what needs them. It is pure.
package budget

import (
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/transport"
)

const (
	// Default is Postgres.MaxConnections where that is 0.
	Default = 30

	// relayConnections is what a relay uses while all goes well.
	relayConnections = 5

	// otherConnections are for what brings events back and keeps the tables, and for waking relays elsewhere.
	otherConnections = 2
)

// Handler is one that shares the connections.
type Handler struct {
	Name        string
	Concurrency int // 0: not decided
}

// Beside is how many connections the pool has for other things than handlers.
func Beside(relay bool) int {
	if relay {
		return otherConnections + relayConnections
	}
	return otherConnections
}

// For is how many connections messages in flight hold, of which there is one or more: one each or, in groups, one
// for each group.
func For(concurrency, group int) int { return (concurrency-1)/max(group, 1) + 1 }

// Allot decides how many messages each handler has in hand at once, where it does not say: those of an equal share of the
// connections that are left, up to transport.DefaultConcurrency. A message holds a connection while it is handled, or shares
// it with the others of its group; those that wait for one hold their messages, and the locks of what they have begun.
func Allot(connections int, relay bool, group int, handlers []*Handler) error {
	left, undecided := connections-Beside(relay), 0
	needs := []string{fmt.Sprintf("%d for what runs in the background", otherConnections)}
	if relay {
		needs = append(needs, fmt.Sprintf("%d for the relay", relayConnections))
	}
	for _, h := range handlers {
		if h.Concurrency == 0 {
			undecided++
			continue
		}
		n := For(h.Concurrency, group)
		left -= n
		needs = append(needs, fmt.Sprintf("%d for handler %s", n, h.Name))
	}
	if undecided > 0 {
		needs = append(needs, fmt.Sprintf("1 or more for each of %d other handlers", undecided))
	}
	if left < undecided {
		return fmt.Errorf("Config.Postgres.MaxConnections (postgres.max_connections) is %d: want %d or more: %s; or lower the handlers' concurrency",
			connections, connections-left+undecided, strings.Join(needs, ", "))
	}
	for _, h := range handlers {
		if h.Concurrency == 0 {
			h.Concurrency = min(left/undecided, transport.DefaultConcurrency) * max(group, 1)
		}
	}
	return nil
}
