package framework_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/wrongtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// changed is the DSN, a URL, with another part.
func changed(t *testing.T, dsn string, change func(*url.URL)) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	u := &url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Path: "/" + config.Database,
		Host: fmt.Sprintf("%s:%d", config.Host, config.Port), RawQuery: "sslmode=disable",
	}
	change(u)
	return u.String()
}

// with is the DSN with a parameter more.
func with(t *testing.T, dsn, parameter string) string {
	t.Helper()
	return changed(t, dsn, func(u *url.URL) { u.RawQuery += "&" + parameter })
}

// userOf creates a role of that name with these privileges, which ends with the test, and returns its DSN.
func userOf(t *testing.T, dsn, name, attributes string, grants ...string) string {
	t.Helper()
	pool := devtest.Pool(t)
	exec := func(sql string) {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), sql)
		require.NoError(t, err, sql)
	}
	exec(fmt.Sprintf("create role %s login password '%s' %s", name, wrongtest.Secret, attributes))
	t.Cleanup(func() { exec("drop owned by " + name); exec("drop role " + name) })
	for _, g := range grants {
		exec("grant " + g + " to " + name)
	}
	return changed(t, dsn, func(u *url.URL) { u.User = url.UserPassword(name, wrongtest.Secret) })
}

// reader is userOf for a role that may read what a service checks, and no more.
func reader(t *testing.T, dsn, schema, attributes string) string {
	t.Helper()
	return userOf(t, dsn, schema+"_s", attributes, "usage on schema "+schema, "select on all tables in schema "+schema)
}

// TestWrongSettings: what keeps a service from starting is told within 5 s, with the setting and the remedy.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and never answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	inMemory := memory.Driver
	missing := devtest.Topic(t)
	postgres := func(change func(t *testing.T, dsn, schema string) string) func(*testing.T, *framework.Config) {
		return func(t *testing.T, c *framework.Config) {
			t.Helper()
			c.Postgres.DSN, c.Postgres.Migrate = change(t, dsn, c.Postgres.Schema), false
		}
	}
	at := func(address string) func(*testing.T, *framework.Config) {
		return postgres(func(*testing.T, string, string) string {
			return "postgres://me:" + wrongtest.Secret + "@" + address + "/db?sslmode=disable"
		})
	}
	asURL := func(change func(*url.URL)) func(*testing.T, *framework.Config) {
		return postgres(func(t *testing.T, dsn, _ string) string { return changed(t, dsn, change) })
	}
	parameter := func(p string) func(*testing.T, *framework.Config) {
		return asURL(func(u *url.URL) { u.RawQuery += "&" + p })
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *framework.Config)
		driver transport.Driver
	}{
		"http_address_in_use":       {func(_ *testing.T, c *framework.Config) { c.HTTP.Address = taken.Addr().String() }, inMemory},
		"http_address_of_another":   {func(_ *testing.T, c *framework.Config) { c.HTTP.Address = "192.0.2.1:80" }, inMemory},
		"http_address_without_port": {func(_ *testing.T, c *framework.Config) { c.HTTP.Address = "127.0.0.1" }, inMemory},
		"http_tls_files_that_are_missing": {func(_ *testing.T, c *framework.Config) {
			c.HTTP.TLS = framework.ServerTLS{CertFile: "nowhere.crt", KeyFile: "nowhere.key"}
		}, inMemory},
		"admin_tls_files_that_are_missing": {func(_ *testing.T, c *framework.Config) {
			c.Admin.Address, c.Admin.TLS = "127.0.0.1:0", framework.ServerTLS{CertFile: "nowhere.crt", KeyFile: "nowhere.key"}
		}, inMemory},
		"admin_address_in_use":     {func(_ *testing.T, c *framework.Config) { c.Admin.Address = taken.Addr().String() }, inMemory},
		"driver_that_is_not_there": {func(_ *testing.T, c *framework.Config) { c.Broker = "kafka" }, inMemory},

		"postgres_port_where_nothing_listens": {at(nobody), inMemory},
		"postgres_port_that_keeps_silent":     {at(taken.Addr().String()), inMemory},
		"postgres_host_without_a_name":        {at("nowhere.invalid:5432"), inMemory},
		"postgres_user":                       {asURL(func(u *url.URL) { u.User = url.UserPassword("no_such_role", wrongtest.Secret) }), inMemory},
		"postgres_password": {postgres(func(t *testing.T, dsn, schema string) string {
			return strings.Replace(userOf(t, dsn, schema+"_p", ""), wrongtest.Secret, "wrong", 1)
		}), inMemory},
		"postgres_database":              {asURL(func(u *url.URL) { u.Path = "/no_such_database" }), inMemory},
		"postgres_tls_that_is_not_there": {asURL(func(u *url.URL) { u.RawQuery = "sslmode=require" }), inMemory},
		"postgres_that_is_read_only":     {parameter("default_transaction_read_only=on"), inMemory},
		"postgres_role_without_connections": {postgres(func(t *testing.T, dsn, schema string) string {
			return userOf(t, dsn, schema+"_c", "connection limit 0")
		}), inMemory},
		"postgres_role_without_rights": {postgres(func(t *testing.T, dsn, schema string) string {
			return userOf(t, dsn, schema+"_r", "")
		}), inMemory},
		"postgres_role_that_only_reads": {func(t *testing.T, c *framework.Config) {
			t.Helper()
			c.Postgres.DSN, c.Postgres.Migrate, c.Outbox.Relay = reader(t, dsn, c.Postgres.Schema, ""), false, framework.Apart // of claim and relay either may be first
		}, inMemory},
		"postgres_schema_without_tables": {func(t *testing.T, c *framework.Config) {
			t.Helper()
			c.Postgres.Schema, c.Postgres.Migrate = devtest.Schema(t), false
		}, inMemory},
		"postgres_schema_that_is_none": {func(_ *testing.T, c *framework.Config) { c.Postgres.Schema = "pg_labour" }, inMemory},
		"few_connections": {func(_ *testing.T, c *framework.Config) {
			c.Postgres.MaxConnections, c.Handlers = 12, map[string]framework.Handler{"notify": {Concurrency: 20}}
		}, inMemory},
		"few_connections_by_the_dsn": {func(t *testing.T, c *framework.Config) {
			t.Helper()
			c.Postgres.DSN = with(t, c.Postgres.DSN, "pool_max_conns=7")
		}, inMemory},
		"postgres_role_with_few_connections": {func(t *testing.T, c *framework.Config) {
			t.Helper()
			c.Postgres.DSN, c.Postgres.Migrate, c.Effects.MaxConns = reader(t, dsn, c.Postgres.Schema, "connection limit 50"), false, 40
		}, inMemory},

		"kafka_port_where_nothing_listens":      {nil, kafka.NewDriver(kafka.Config{Brokers: []string{nobody}})},
		"kafka_port_that_keeps_silent":          {nil, kafka.NewDriver(kafka.Config{Brokers: []string{taken.Addr().String()}})},
		"kafka_topic_that_is_missing":           {nil, kafka.NewDriver(kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Topics: kafka.Topics{Missing: kafka.CheckOnly}})},
		"pubsub_endpoint_where_nothing_listens": {nil, pubsub.NewDriver(pubsub.Config{ProjectID: "nowhere", ClientOptions: emulated(nobody)})},
		"pubsub_endpoint_that_keeps_silent":     {nil, pubsub.NewDriver(pubsub.Config{ProjectID: "nowhere", ClientOptions: emulated(taken.Addr().String())})},
		"pubsub_topic_that_is_missing": {nil, pubsub.NewDriver(pubsub.Config{
			ProjectID: "nowhere", Resources: pubsub.CheckOnly, ClientOptions: emulated(devtest.Start(t, devstack.PubSub).PubSubHost()),
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := framework.Config{
				Service: "labour", Broker: c.driver.Name, Drivers: []transport.Driver{c.driver}, HTTP: framework.HTTP{Address: "127.0.0.1:0"},
				Postgres: framework.Postgres{DSN: dsn, Schema: devtest.Schema(t), Migrate: true},
			}
			migrate := cfg
			migrate.Broker, migrate.Drivers = "memory", []transport.Driver{inMemory}
			migrated, err := patientNew(t.Context(), migrate) // that takes what it takes
			require.NoError(t, err)
			require.NoError(t, migrated.Close())
			if c.change != nil {
				c.change(t, &cfg)
			}
			wrongtest.Refused(t, func() error {
				svc, err := framework.New(t.Context(), cfg)
				if err != nil {
					return err
				}
				require.NoError(t, svc.AddHandler("notify", missing, ignore))
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				return svc.Run(ctx)
			}, missing, "TOPIC", migrate.Postgres.Schema, "SCHEMA", cfg.Postgres.Schema, "SCHEMA", "postgres:///", "")
		})
	}
}
