package source

import (
	"encoding/json"
	"fmt"
	"io"
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

// Print writes the node in YAML for a Format method, which can report no error.
func Print(w io.Writer, node *yaml.Node) {
	b, err := yaml.Marshal(node)
	if err != nil {
		b = []byte(err.Error())
	}
	_, _ = w.Write(b)
}

// JSON returns the node in JSON.
func JSON(node *yaml.Node) ([]byte, error) {
	var value map[string]any
	if err := node.Decode(&value); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return json.Marshal(value)
}
