// Package source reads a configuration's file and environment variables into a struct, whose fields are the settings.
package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/transport"
)

// EnvPrefix begins the names of environment variables.
const EnvPrefix = "MILLRACE"

// brokers are the names of sections for brokers. They are valid even if their drivers are not given.
var brokers = []string{"kafka", "memory", "pubsub"}

// addresses are the settings with the broker's address.
var addresses = []string{"kafka.brokers", "pubsub.project_id"}

// FromDev is the hint in errors about a missing address of the database or the broker.
const FromDev = `If "millrace dev" runs in another terminal, run here the "export" lines that it printed there.`

// Source is a configuration's file and environment. It is kept, because the drivers' sections are read later.
type Source struct {
	Name    string // of the file
	root    *yaml.Node
	environ []string
}

// ReadFile returns the content of a configuration file, or nil if the path is "".
func ReadFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration file %s: create it, or name another one; an empty path names none, and then only %s_* environment variables count", path, EnvPrefix)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return content, nil
}

// Read reads a file. The problems concern the file as a whole. The source is nil if the file is not YAML.
func Read(name string, file []byte, environ []string) (*Source, []settings.Problem) {
	s := &Source{Name: name, root: &yaml.Node{}, environ: environ}
	var documents []yaml.Node
	if err := yaml.Load(file, &documents, yaml.WithAllDocuments()); err != nil {
		return nil, []settings.Problem{notYAML(err)}
	}
	if len(documents) > 0 {
		s.root = &documents[0]
	}
	if s.root.Kind == yaml.DocumentNode {
		s.root = s.root.Content[0]
	}
	if len(documents) > 1 {
		return s, []settings.Problem{{Origin: settings.Origin{Line: documents[1].Line}, Text: fmt.Sprintf("the file has %d documents, parted by ---: want one", len(documents))}}
	}
	return s, nil
}

// Decode reads all sections but those of drivers. known are the environment variables of the settings.
func (s *Source) Decode(config any, drivers []transport.Driver) (r *settings.Reader, known []string) {
	besides := slices.Clone(brokers)
	for _, d := range drivers {
		if !slices.Contains(besides, d.Name) {
			besides = append(besides, d.Name)
		}
	}
	r = settings.NewReader()
	r.Decode(s.root, "", config, besides...)
	return r, r.Environ(s.lookup, EnvPrefix, "", config)
}

// Section reads the settings of a driver, and returns the environment variables of these settings. If the driver is not used,
// required settings may be missing. A nil source has no settings.
func (s *Source) Section(d transport.Driver, used bool, env transport.Environment) (transport.Settings, []string, []settings.Problem) {
	of, r := d.Settings(), settings.NewReader()
	var known []string
	if s != nil {
		if node := settings.Child(s.root, d.Name); node != nil {
			r.Decode(node, d.Name, of)
		}
		known = r.Environ(s.lookup, EnvPrefix+"_"+settings.Variable(d.Name), d.Name, of)
	}
	if used {
		r.Refuse(of.WithDefaults(env).Validate(), d.Name, of)
		for i, p := range r.Problems {
			if slices.Contains(addresses, p.Path) && strings.HasPrefix(p.Text, "is empty") {
				r.Problems[i].Text += ". " + FromDev
			}
		}
	}
	return of, known, r.Problems
}

// lookup finds an environment variable.
func (s *Source) lookup(name string) (string, bool) {
	for _, entry := range slices.Backward(s.environ) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Getenv returns an environment variable, from the process if the configuration was made in Go.
func (s *Source) Getenv(name string) string {
	if s == nil {
		return os.Getenv(name)
	}
	value, _ := s.lookup(name)
	return value
}

// Driver returns the driver of the broker. Its error is worded to follow the name of the field.
func Driver(drivers []transport.Driver, broker string) (transport.Driver, error) {
	names := make([]string, len(drivers))
	for i, d := range drivers {
		if names[i] = d.Name; d.Name == broker {
			return d, nil
		}
	}
	if len(names) == 0 {
		return transport.Driver{}, fmt.Errorf("is %q, and the service has no driver: pass the driver of that broker to framework.Open or in Config.Drivers", broker)
	}
	if slices.Contains(brokers, broker) {
		return transport.Driver{}, fmt.Errorf("is %q, but the service has a driver of %s only: pass the driver of %[1]s to framework.Open or in Config.Drivers, or name another broker", broker, strings.Join(names, ", "))
	}
	return transport.Driver{}, fmt.Errorf("is %q: want one of %s", broker, strings.Join(names, ", "))
}

// Databases reads a file with a list of databases.
func Databases(path string) ([]fleet.Database, []settings.Problem, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the file that Config.Fleet.File (fleet.file) names: %w", err)
	}
	var list struct{ Databases []fleet.Database }
	var root yaml.Node
	if err := yaml.Load(content, &root); err != nil && len(bytes.TrimSpace(content)) > 0 {
		return nil, []settings.Problem{notYAML(err)}, nil
	}
	if root.Kind == yaml.DocumentNode {
		root = *root.Content[0]
	}
	r := settings.NewReader()
	r.Decode(&root, "", &list)
	r.Refuse(fleet.Check("Config.Databases", list.Databases), "", &list)
	if len(list.Databases) == 0 && len(r.Problems) == 0 {
		r.Problems = append(r.Problems, settings.Problem{Path: "databases", Text: "is empty: want one database or more, each with a name and a dsn"})
	}
	return list.Databases, r.Problems, nil
}
