package framework

import (
	"cmp"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/transport"
)

// unnamed is ConfigError.Source for a configuration without a file.
const unnamed = "configuration"

// ConfigError lists everything that is wrong with a configuration. Correct the configuration: loading it again does not help.
type ConfigError struct {
	Source   string   // the file
	Problems []string // each names the setting, its value and the values that would be right; never a secret
}

// Error returns one line for each problem.
func (e *ConfigError) Error() string { return strings.Join(e.Problems, "\n") }

func configError(name string, problems []settings.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return &ConfigError{Source: name, Problems: source.Lines(name, problems)}
}

// Load reads a configuration from a file, and then from MILLRACE_* environment variables, which override the file. If path is
// empty, it reads only the environment. The configuration keeps the drivers. Load checks the sections of brokers whose drivers
// are given. The error is a *ConfigError with everything that is wrong, or says why the file cannot be read.
func Load(path string, drivers ...transport.Driver) (Config, error) {
	return LoadEnv(path, os.Environ(), drivers...)
}

// LoadEnv is Load with environ in place of the process's environment: entries KEY=value, of which the last for a key counts. A
// program can append its flags to os.Environ, so that they override file and environment.
//
// Libraries read variables of their own from the process, whatever environ has: pgx PGHOST, PGUSER, PGPASSWORD and the like, for what the
// DSN leaves out; the brokers' clients PUBSUB_*, GOOGLE_* and, without other brokers, MILLRACE_KAFKA_BROKERS; OpenTelemetry OTEL_*. So a
// configuration that must not depend on the process needs a DSN with host, port, user, password and database, and the broker's address.
func LoadEnv(path string, environ []string, drivers ...transport.Driver) (Config, error) {
	file, err := source.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	return parse(path, file, environ, drivers)
}

// parse is Load without access to files and the process's environment.
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

// Settings returns the driver of the configuration's broker, and its checked settings. The error is a *ConfigError.
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

// environment returns the part of the transport's environment on which a driver's defaults and checks depend.
func (c Config) environment() transport.Environment {
	return transport.Environment{DrainTimeout: c.grace()}
}

// grace is how long handlers and requests may take to finish when the service stops. A claim ends a handler at its timeout.
func (c Config) grace() time.Duration {
	d := max(c.ShutdownTimeout, 0) // Validate reports a negative timeout
	if c.Postgres.Disabled {
		return d
	}
	d = max(d, c.Claim.WithDefaults().HandlerTimeout)
	for _, h := range c.Handlers {
		d = max(d, h.Timeout)
	}
	return d
}
