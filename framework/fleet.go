package framework

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/framework/internal/health"
	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/transport"
)

// Fleet names the databases whose outboxes "millrace relay" and RunFleet forward in one process. A service does not use it.
type Fleet struct {
	// Databases are the fleet's databases. Default: only those of File.
	Databases []fleet.Database
	// File names a YAML file with a list "databases" of the same form, which is added to Databases. The file is read again every
	// Refresh, so databases can be added and removed at run time. A wrong file changes nothing. Default: "", none.
	File string
	// Config configures the fleet. Outbox configures its relays.
	fleet.Config `without:"Relay"`
}

// There tells whether the configuration has a fleet.
func (f Fleet) There() bool { return len(f.Databases) > 0 || f.File != "" }

// Provider returns a function that lists the databases.
func (f Fleet) Provider() fleet.Provider {
	return func(context.Context) ([]fleet.Database, error) {
		all := slices.Clone(f.Databases)
		if f.File == "" {
			return all, nil
		}
		listed, problems, err := source.Databases(f.File)
		return append(all, listed...), errors.Join(err, configError(f.File, problems))
	}
}

// validate reports everything that is wrong with a fleet, apart from its file.
func (f Fleet) validate() error {
	return errors.Join(source.Within("Config.Fleet", f.WithDefaults().Validate()), fleet.Check("Config.Fleet.Databases", f.Databases))
}

// RunFleet forwards the outboxes of the databases in Config.Fleet to the broker, until ctx ends. Config.Outbox configures each of
// their relays, and Config.Postgres.Schema is the schema in each database; Postgres.DSN is not used. If Config.Admin.Address is
// set, RunFleet serves /metrics, /healthz and /readyz there. RunFleet returns an error if the configuration is wrong or the
// broker does not answer. A database that does not answer is no error.
func RunFleet(ctx context.Context, cfg Config) (err error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	if !cfg.Fleet.There() {
		return errors.New("Config.Fleet is empty: want Databases or File (fleet.databases or fleet.file)")
	}
	_, settings, err := cfg.Settings()
	if err != nil {
		return err
	}
	s := &Service{cfg: cfg, log: telemetry.Logger(os.Stderr, cfg.Service, telemetry.Log(cfg.Log))}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if s.telemetry, err = telemetry.New(ctx, cfg.Service, telemetry.Config(cfg.Telemetry)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.telemetry.Close()) }()
	if s.transport, err = broker.Open(connecting, cfg.Broker, settings, s.environment()); err != nil {
		return err
	}
	if s.transport, err = broker.Reach(connecting, s.transport); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.transport.Close()) }()
	publisher, err := transport.PlainPublisher(s.transport)
	if err != nil {
		return err
	}
	own := cfg.Fleet.Config
	own.Relay = s.relayConfig()
	own.Relay.Broker, own.Admit = cfg.Broker, func(ctx context.Context, pool *pgxpool.Pool) error {
		return broker.Admit(ctx, pool, cfg.Postgres.Schema, cfg.Broker)
	}
	f, err := fleet.New(cfg.Fleet.Provider(), publisher, own)
	if err != nil {
		return err
	}
	end, err := s.serveFleet(connecting, f)
	if err != nil {
		return err
	}
	defer end()
	s.log.InfoContext(ctx, "fleet runs", "broker", cfg.Broker, "schema", cfg.Postgres.Schema)
	if err := f.Run(ctx); err != nil {
		return err
	}
	s.log.InfoContext(context.WithoutCancel(ctx), "fleet has ended")
	return nil
}

// relayConfig returns the configuration of a relay in this process.
func (s *Service) relayConfig() (cfg outbox.RelayConfig) {
	cfg = s.cfg.Outbox.RelayConfig
	cfg.Schema, cfg.DrainTimeout = s.cfg.Postgres.Schema, s.cfg.ShutdownTimeout
	if s.cfg.Migration.To == "" { // in a migration the transport reads the broker from the database
		cfg.Broker = s.cfg.Broker
	}
	cfg.Logger = cmp.Or(cfg.Logger, s.log)
	cfg.MeterProvider = cmp.Or(cfg.MeterProvider, s.telemetry.Meter)
	cfg.TracerProvider = cmp.Or(cfg.TracerProvider, s.telemetry.Tracer)
	cfg.Propagator = cmp.Or(cfg.Propagator, s.telemetry.Propagator)
	return cfg
}

// serveFleet serves metrics and health checks of a fleet, until end is called.
func (s *Service) serveFleet(ctx context.Context, f *fleet.Fleet) (end func(), err error) {
	if s.cfg.Admin.Address == "" {
		return func() {}, nil
	}
	a, err := web.NewOperators(ctx, s.cfg.Admin.web(), s.cfg.Admin.Address, s.log)
	if err != nil {
		return nil, err
	}
	health.RegisterFleet(a.Routes, f)
	if s.telemetry.Metrics != nil {
		a.Handle("GET "+web.MetricsPath, s.telemetry.Metrics)
	}
	return a.Serve(), nil
}
