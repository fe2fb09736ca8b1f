// Package budget divides the connections of a service's pool among handlers, relay and background work. It is pure.
package budget

import (
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/transport"
)

const (
	// Default is the default of Postgres.MaxConnections.
	Default = 30

	// relayConnections is how many connections a relay uses when nothing fails.
	relayConnections = 5

	// otherConnections are for retries of events, maintenance of the tables, and the notifier.
	otherConnections = 2
)

// Handler is a handler that uses connections.
type Handler struct {
	Name        string
	Concurrency int // 0: Allot decides
}

// Beside returns how many connections the pool reserves for other work than handlers.
func Beside(relay bool) int {
	if relay {
		return otherConnections + relayConnections
	}
	return otherConnections
}

// For returns how many connections a handler needs for this many messages in flight (1 or more): one for each message or, with
// groups, one for each group.
func For(concurrency, group int) int { return (concurrency-1)/max(group, 1) + 1 }

// Allot sets the concurrency of handlers that have none: each gets an equal share of the remaining connections, up to
// transport.DefaultConcurrency. A handled message holds a connection, or shares that of its group. A larger concurrency would do
// harm: messages that wait for a connection keep the locks of the transactions that they have begun.
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
