// Package swap runs an example on another broker by changing one line of its configuration.
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

// Broker reads the YAML after changing the line that names the broker. Settings that differ between runs come from the environment.
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

// line matches the line that names the broker. A user may have changed its value.
var line = regexp.MustCompile(`(?m)^broker:[ \t]*["']?(\w+)["']?`)

// Line returns the YAML with another broker's name in that line.
func Line(yaml, broker string) (string, error) {
	at := line.FindStringIndex(yaml)
	if at == nil {
		return "", errors.New(`the configuration has no line "broker: pubsub"`)
	}
	return yaml[:at[0]] + "broker: " + broker + yaml[at[1]:], nil
}

// Named returns the broker that the YAML names, or "".
func Named(yaml string) string {
	if found := line.FindStringSubmatch(yaml); found != nil {
		return found[1]
	}
	return ""
}
