package kafka

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/millrace-go/millrace/transport"
)

// Driver makes this transport from a configuration.
var Driver = NewDriver(Config{})

// NewDriver returns a driver whose configuration changes config: for what only Go can say, such as Dial or SASL.Token.
func NewDriver(config Config) transport.Driver {
	return transport.Driver{Name: "kafka", Settings: func() transport.Settings { return &driverSettings{Config: config} }}
}

type driverSettings struct {
	Config

	// TLS encrypts the connections. Default: they are plain text.
	TLS TLS
}

func (s *driverSettings) WithDefaults(env transport.Environment) transport.Settings {
	return &driverSettings{Config: s.in(env).WithDefaults(), TLS: s.TLS}
}

func (s *driverSettings) Limits() transport.Limits { return s.Config.WithDefaults().limits() }

// Units implements transport.UnitSettings.
func (s *driverSettings) Units() bool { return s.Delivery == Transactional }

// Validate reads the files that TLS names: what is wrong with them is better told before the service starts.
func (s *driverSettings) Validate() error {
	c, err := s.encrypted(s.Config)
	return errors.Join(err, c.Validate())
}

func (s *driverSettings) Open(ctx context.Context, env transport.Environment) (transport.Transport, error) {
	c, err := s.encrypted(s.in(env))
	if err != nil {
		return nil, err
	}
	t, err := New(ctx, c)
	if err != nil {
		return nil, err // and no nil *Transport, which would be a transport
	}
	return t, nil
}

// in is the configuration with what the environment says where it says nothing.
func (s *driverSettings) in(env transport.Environment) Config {
	c := s.Config
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	c.Logger = cmp.Or(c.Logger, env.Logger)
	c.MeterProvider = cmp.Or(c.MeterProvider, env.MeterProvider)
	c.TracerProvider = cmp.Or(c.TracerProvider, env.TracerProvider)
	c.Propagator = cmp.Or(c.Propagator, env.Propagator)
	return c
}

// encrypted is c with TLS, also beside an error.
func (s *driverSettings) encrypted(c Config) (Config, error) {
	var err error
	if s.TLS != (TLS{}) {
		base := c.TLS
		c.TLS, err = s.TLS.config(base)
		c.newTLS = s.TLS.reader(base, c.TLS, cmp.Or(c.Logger, slog.Default()))
	}
	return c, err
}
