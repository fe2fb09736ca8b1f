package framework

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/settings"
)

// YAML returns the configuration that takes effect, with every default, and with the section of its broker if Drivers has the
// driver. Secrets are hidden. Load can read the result, apart from the secrets.
func (c Config) YAML() ([]byte, error) {
	return yaml.Marshal(c.node())
}

func (c Config) node() *yaml.Node {
	c = c.WithDefaults()
	c.Admin.Console.Config = c.Admin.Console.WithDefaults()
	c.Outbox.RelayConfig = c.Outbox.WithDefaults()
	c.Fleet.Config = c.Fleet.WithDefaults()
	c.Claim.Config = c.Claim.WithDefaults()
	c.Effects.Config = c.Effects.WithDefaults()
	c.IdempotencyKeys.Config = c.IdempotencyKeys.WithDefaults()
	if parsed, err := pgdsn.Parse(c.Postgres.DSN); err == nil {
		c.Postgres.MaxConnections = database.Connections(parsed, c.Postgres.DSN, c.Postgres.MaxConnections)
	}
	node := settings.Node(c)
	if c.Postgres.Disabled {
		node = source.WithoutTables(node, c.Claim.MaxAttempts)
	}
	for _, d := range c.Drivers {
		if d.Name == c.Broker || d.Name == c.Migration.To {
			s, _, _ := c.section(d)
			node.Content = append(node.Content, settings.Word(d.Name), settings.Node(s.WithDefaults(c.environment())))
		}
	}
	return node
}

// MarshalJSON returns the same as YAML, in JSON.
func (c Config) MarshalJSON() ([]byte, error) {
	return source.JSON(c.node())
}

// Format prints the result of YAML for every verb, so that no secret gets into a log.
func (c Config) Format(f fmt.State, _ rune) { source.Print(f, c.node()) }

// Format prints the service's configuration. Without this method fmt would print secrets in unexported fields.
func (s *Service) Format(f fmt.State, _ rune) { source.Print(f, s.cfg.node()) }

// LogValue keeps secrets from logs.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// Format hides the secret of the DSN.
func (p Postgres) Format(f fmt.State, _ rune) { source.Print(f, settings.Node(p)) }

// LogValue hides the secret of the DSN.
func (p Postgres) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// MarshalJSON hides the secret of the DSN.
func (p Postgres) MarshalJSON() ([]byte, error) {
	type plain Postgres
	if p.DSN != "" {
		p.DSN = settings.Hidden
	}
	return json.Marshal(plain(p))
}
