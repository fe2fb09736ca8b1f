// Package swap runs an example on another broker, by another word in one line of its configuration.
package swap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/transport"
)

// Broker reads the YAML with the one line that names the broker changed. What differs from run to run comes from the
// environment.
func Broker(yaml, broker string, drivers ...transport.Driver) (cfg framework.Config, err error) {
	if yaml, err = Line(yaml, broker); err != nil {
		return cfg, err
	}
	dir, err := os.MkdirTemp("", "millrace-example")
	if err != nil {
		return cfg, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "millrace.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return cfg, err
	}
	if cfg, err = framework.Load(file, drivers...); err == nil && cfg.Broker != broker {
		err = fmt.Errorf("MILLRACE_BROKER in the environment says %s, and the command line %s: unset it", cfg.Broker, broker)
	}
	return cfg, err
}

// line names the broker, whose word may be a person's.
var line = regexp.MustCompile(`(?m)^broker:[ \t]*["']?(\w+)["']?`)

// Line returns the YAML with another broker's name in its line.
func Line(yaml, broker string) (string, error) {
	at := line.FindStringIndex(yaml)
	if at == nil {
		return "", errors.New(`the configuration has no line "broker: pubsub"`)
	}
	return yaml[:at[0]] + "broker: " + broker + yaml[at[1]:], nil
}

// Named is the broker that the YAML names; "" for none.
func Named(yaml string) string {
	if found := line.FindStringSubmatch(yaml); found != nil {
		return found[1]
	}
	return ""
}
