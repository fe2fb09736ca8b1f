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

// allot decides how many messages each handler has in hand at once, where it does not say: those of an equal share of the
// connections that are left, up to transport.DefaultConcurrency. A message holds a connection while it is handled, or shares
// it with the others of its group; those that wait for one hold their messages, and the locks of what they have begun.
func allot(connections int, relay bool, group int, handlers []*handler) error {
	left, undecided := connections-otherConnections, 0
	group = max(group, 1)
	needs := []string{fmt.Sprintf("%d for what runs in the background", otherConnections)}
	if relay {
		left -= relayConnections
		needs = append(needs, fmt.Sprintf("%d for the relay", relayConnections))
	}
	for _, h := range handlers {
		if h.concurrency == 0 {
			undecided++
			continue
		}
		n := (h.concurrency + group - 1) / group
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
			h.concurrency = min(left/undecided, transport.DefaultConcurrency) * group
		}
	}
	return nil
}
