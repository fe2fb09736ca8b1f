package framework

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/transport"
)

// envPrefix begins the names of environment variables.
const envPrefix = "MILLRACE"

// brokerNames are the sections that brokers may have, whether or not their drivers are there to look into them.
var brokerNames = []string{"kafka", "memory", "pubsub"}

// addresses are the settings that say where the broker is.
var addresses = []string{"kafka.brokers", "pubsub.project_id"}

// fromDev is for whoever has not said where the database or the broker is.
const fromDev = `If "millrace dev" runs in another terminal, run here the "export" lines that it printed there.`

// loaded is what a configuration was read from: the drivers' sections are read when the drivers are there.
type loaded struct {
	source  string // the file
	root    *yaml.Node
	environ []string
}

// Load reads a configuration: the file first, then what MILLRACE_* environment variables say instead. An empty path names
// no file. The configuration keeps the drivers. The sections of the brokers are checked as far as their drivers are given.
// The error is a *ConfigError, which has everything that is wrong, or says why the file cannot be read.
func Load(path string, drivers ...transport.Driver) (Config, error) {
	return LoadEnv(path, os.Environ(), drivers...)
}

// LoadEnv is Load with MILLRACE_* variables of another environment than the process's: KEY=value, the last one of a key
// counts. So a program's flags win over the file and over the process's environment.
func LoadEnv(path string, environ []string, drivers ...transport.Driver) (Config, error) {
	var file []byte
	if path != "" {
		var err error
		if file, err = os.ReadFile(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return Config{}, fmt.Errorf("there is no configuration file %s: create it, or name another one; an empty path names none, and then only %s_* environment variables count", path, envPrefix)
			}
			return Config{}, fmt.Errorf("read the configuration: %w", err)
		}
	}
	return parse(path, file, environ, drivers)
}

// parse is Load without its surroundings.
func parse(path string, file []byte, environ []string, drivers []transport.Driver) (Config, error) {
	from := &loaded{source: cmp.Or(path, "configuration"), root: &yaml.Node{}, environ: environ}
	c := Config{Drivers: drivers, loaded: from}
	var documents []yaml.Node
	if err := yaml.Load(file, &documents, yaml.WithAllDocuments()); err != nil {
		return Config{}, notYAML(from.source, err)
	}
	if len(documents) > 0 {
		from.root = &documents[0]
	}
	if from.root.Kind == yaml.DocumentNode {
		from.root = from.root.Content[0]
	}
	besides := slices.Clone(brokerNames)
	for _, d := range drivers {
		if !slices.Contains(besides, d.Name) {
			besides = append(besides, d.Name)
		}
	}
	r := settings.NewReader()
	r.Decode(from.root, "", &c, besides...)
	known := r.Environ(from.lookup, envPrefix, "", &c)
	c = c.WithDefaults()
	r.Refuse(c.Validate(), "", &c)
	problems := r.Problems
	if len(documents) > 1 {
		problems = append(problems, settings.Problem{Origin: settings.Origin{Line: documents[1].Line}, Text: fmt.Sprintf("the file has %d documents, parted by ---: want one", len(documents))})
	}
	for _, d := range drivers {
		_, names, wrong := c.section(d)
		known = append(known, names...)
		problems = append(problems, wrong...)
	}
	if len(drivers) > 0 && c.Broker != "" {
		if _, err := c.driver(c.Broker); err != nil {
			problems = append(problems, settings.Problem{Origin: r.Origin("broker"), Path: "broker", Text: err.Error()})
		}
		if to := c.Migration.To; to != "" {
			if _, err := c.driver(to); err != nil {
				problems = append(problems, settings.Problem{Origin: r.Origin("migration.to"), Path: "migration.to", Text: err.Error()})
			}
		}
	}
	problems = append(problems, strangers(environ, known, drivers)...)
	return c, configError(from.source, problems)
}

// Settings returns the settings of the configuration's broker, checked, and its driver. The error is a *ConfigError.
func (c Config) Settings() (transport.Driver, transport.Settings, error) {
	source := "configuration"
	if c.loaded != nil {
		source = c.loaded.source
	}
	d, err := c.driver(c.Broker)
	if err != nil {
		return transport.Driver{}, nil, configError(source, []settings.Problem{{Path: "broker", Text: err.Error()}})
	}
	s, _, problems := c.section(d)
	return d, s, configError(source, problems)
}

// driver is that of a broker. Its error is about the field that names it.
func (c Config) driver(broker string) (transport.Driver, error) {
	names := make([]string, len(c.Drivers))
	for i, d := range c.Drivers {
		if names[i] = d.Name; d.Name == broker {
			return d, nil
		}
	}
	if len(names) == 0 {
		return transport.Driver{}, fmt.Errorf("is %q, and Config.Drivers is empty: add the driver of that broker", broker)
	}
	if slices.Contains(brokerNames, broker) {
		return transport.Driver{}, fmt.Errorf("is %q, and its driver is not there, but those of %s: add it to Config.Drivers, or name another broker", broker, strings.Join(names, ", "))
	}
	return transport.Driver{}, fmt.Errorf("is %q: want one of %s", broker, strings.Join(names, ", "))
}

// section reads the settings of a driver, and returns the variables that could change them.
func (c Config) section(d transport.Driver) (transport.Settings, []string, []settings.Problem) {
	s, r := d.Settings(), settings.NewReader()
	var known []string
	if c.loaded != nil {
		if node := settings.Child(c.loaded.root, d.Name); node != nil {
			r.Decode(node, d.Name, s)
		}
		known = r.Environ(c.loaded.lookup, envPrefix+"_"+settings.Variable(d.Name), d.Name, s)
	}
	if d.Name != "" && (d.Name == c.Broker || d.Name == c.Migration.To) { // what others lack, they may lack
		r.Refuse(s.WithDefaults(c.environment()).Validate(), d.Name, s)
		for i, p := range r.Problems {
			if slices.Contains(addresses, p.Path) && strings.HasPrefix(p.Text, "is empty") {
				r.Problems[i].Text += ". " + fromDev
			}
		}
	}
	return s, known, r.Problems
}

// environment is what the printed and the checked settings of a driver depend on.
func (c Config) environment() transport.Environment {
	return transport.Environment{DrainTimeout: max(c.ShutdownTimeout, 0)} // Validate reports a negative one
}

// lookup finds an environment variable.
func (l *loaded) lookup(name string) (string, bool) {
	for _, entry := range slices.Backward(l.environ) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}
