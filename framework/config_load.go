package framework

import (
	"cmp"
	"os"
	"reflect"
	"strings"

	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/transport"
)

// unnamed is the ConfigError.Source of a configuration without a file.
const unnamed = "configuration"

// ConfigError is everything that is wrong with a configuration. Correct it: another try finds the same.
type ConfigError struct {
	Source   string   // the file
	Problems []string // each with its place, what is there and what would be right; never a secret
}

// Error has a line for each problem.
func (e *ConfigError) Error() string { return strings.Join(e.Problems, "\n") }

func configError(name string, problems []settings.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return &ConfigError{Source: name, Problems: source.Lines(name, problems)}
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
	file, err := source.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	return parse(path, file, environ, drivers)
}

// parse is Load without its surroundings.
func parse(path string, file []byte, environ []string, drivers []transport.Driver) (Config, error) {
	name := cmp.Or(path, unnamed)
	from, problems := source.Read(name, file, environ)
	if from == nil {
		return Config{}, configError(name, problems)
	}
	c := Config{Drivers: drivers, loaded: from}
	r, known := from.Decode(&c, drivers)
	c = c.WithDefaults()
	r.Refuse(c.Validate(), "", &c)
	problems = append(r.Problems, problems...)
	for _, d := range drivers {
		_, names, wrong := c.section(d)
		known = append(known, names...)
		problems = append(problems, wrong...)
	}
	brokers := map[string]string{"broker": c.Broker, "migration.to": c.Migration.To}
	for _, path := range []string{"broker", "migration.to"} {
		if _, err := source.Driver(drivers, brokers[path]); err != nil && len(drivers) > 0 && c.Broker != "" && brokers[path] != "" {
			problems = append(problems, settings.Problem{Origin: r.Origin(path), Path: path, Text: err.Error()})
		}
	}
	problems = append(problems, from.Strangers(known, reflect.TypeFor[Config](), drivers)...)
	return c, configError(name, problems)
}

// Settings returns the settings of the configuration's broker, checked, and its driver. The error is a *ConfigError.
func (c Config) Settings() (transport.Driver, transport.Settings, error) {
	name := unnamed
	if c.loaded != nil {
		name = c.loaded.Name
	}
	d, err := source.Driver(c.Drivers, c.Broker)
	if err != nil {
		return transport.Driver{}, nil, configError(name, []settings.Problem{{Path: "broker", Text: err.Error()}})
	}
	s, _, problems := c.section(d)
	return d, s, configError(name, problems)
}

func (c Config) section(d transport.Driver) (transport.Settings, []string, []settings.Problem) {
	used := d.Name != "" && (d.Name == c.Broker || d.Name == c.Migration.To)
	return c.loaded.Section(d, used, c.environment())
}

// environment is what the printed and the checked settings of a driver depend on.
func (c Config) environment() transport.Environment {
	return transport.Environment{DrainTimeout: max(c.ShutdownTimeout, 0)} // Validate reports a negative one
}
