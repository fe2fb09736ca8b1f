package framework

import (
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/transport"
)

const (
	// defaultConnections is Postgres.MaxConnections where that is 0.
	defaultConnections = 30

	// relayConnections is what a relay uses while all goes well.
	relayConnections = 5

	// otherConnections are for what brings events back and keeps the tables, and for waking relays elsewhere.
	otherConnections = 2
)

// connectionsBeside is how many connections the pool has for other things than handlers.
func connectionsBeside(relay bool) int {
	if relay {
		return otherConnections + relayConnections
	}
	return otherConnections
}

// connectionsFor is how many connections messages in flight hold, of which there is one or more: one each or, in groups, one
// for each group.
func connectionsFor(concurrency, group int) int { return (concurrency-1)/max(group, 1) + 1 }

// allot decides how many messages each handler has in hand at once, where it does not say: those of an equal share of the
// connections that are left, up to transport.DefaultConcurrency. A message holds a connection while it is handled, or shares
// it with the others of its group; those that wait for one hold their messages, and the locks of what they have begun.
func allot(connections int, relay bool, group int, handlers []*handler) error {
	left, undecided := connections-connectionsBeside(relay), 0
	needs := []string{fmt.Sprintf("%d for what runs in the background", otherConnections)}
	if relay {
		needs = append(needs, fmt.Sprintf("%d for the relay", relayConnections))
	}
	for _, h := range handlers {
		if h.concurrency == 0 {
			undecided++
			continue
		}
		n := connectionsFor(h.concurrency, group)
		left -= n
		needs = append(needs, fmt.Sprintf("%d for handler %s", n, h.name))
	}
	if undecided > 0 {
		needs = append(needs, fmt.Sprintf("1 or more for each of %d other handlers", undecided))
	}
	if left < undecided {
		return fmt.Errorf("Config.Postgres.MaxConnections (postgres.max_connections) is %d: want %d or more: %s; or lower the handlers' concurrency",
			connections, connections-left+undecided, strings.Join(needs, ", "))
	}
	for _, h := range handlers {
		if h.concurrency == 0 {
			h.concurrency = min(left/undecided, transport.DefaultConcurrency) * max(group, 1)
		}
	}
	return nil
}
