package source

import (
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/settings"
)

// tableSections are the keys of a configuration that have no meaning without a database.
var tableSections = []string{"migration", "outbox", "fleet", "dead_letters", "effects", "idempotency_keys", "schedules"}

// WithoutTables leaves out of a printed configuration what has no meaning without a database.
func WithoutTables(node *yaml.Node, maxAttempts int) *yaml.Node {
	kept := *node
	kept.Content = nil
	for pair := range slices.Chunk(node.Content, 2) {
		switch key := pair[0].Value; {
		case slices.Contains(tableSections, key):
		case key == "postgres":
			kept.Content = append(kept.Content, pair[0], settings.Node(struct{ Disabled bool }{true}))
		case key == "claim":
			attempts := struct{ MaxAttempts int }{maxAttempts}
			kept.Content = append(kept.Content, pair[0], settings.Node(attempts))
		default:
			kept.Content = append(kept.Content, pair...)
		}
	}
	return &kept
}
