// Package stage runs the examples: it starts the services that they need, creates a schema, starts and kills processes, and prints the
// table at the end. It shows nothing of Millrace; the examples do.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/quietport"
	"github.com/millrace-go/millrace/pgtx"
)

// Config is what every part of an example needs to know. Processes get it as JSON.
type Config struct {
	Args       []string // of the command; each part parses them again
	Env        []string // addresses of the services
	DSN        string
	Schema     string // of Millrace's tables and the example's
	Broker     string // pubsub, kafka or memory
	Project    string // of Pub/Sub
	Prefix     string // of topics and consumers; it separates runs on Kafka, and on Pub/Sub does no harm
	Redis      string // host:port
	Addresses  []string
	Extra      string // set by an example
	Number     int    // of the process, among those of its role, from 0
	Duplicates float64
}

// Topic returns the topic's name in this run.
func (c Config) Topic(name string) string { return c.Prefix + name }

// Setting is what an example needs.
type Setting struct {
	Name       string
	Args       []string
	Broker     string
	Needs      []devstack.Service // in addition to PostgreSQL and the broker
	Addresses  int                // how many to listen at
	Duplicates float64            // the share of events that the relay publishes twice
	// Tables creates the tables in the schema, which is first in the pool's search path.
	Tables func(ctx context.Context, pool *pgxpool.Pool, schema string) error
	Logs   io.Writer
}

// Stage holds the services and tables of one run.
type Stage struct {
	Config   Config
	Pool     *pgxpool.Pool
	Services []devstack.Info
	Out      io.Writer
	logs     io.Writer
	undo     []func() error
}

// SetUp starts the services and creates the tables. The caller must call TearDown.
func SetUp(ctx context.Context, set Setting, out io.Writer) (*Stage, error) {
	s := &Stage{Out: out, logs: set.Logs}
	if err := s.setUp(ctx, set); err != nil {
		return nil, errors.Join(err, s.TearDown())
	}
	return s, nil
}

// TearDown removes what SetUp has created.
func (s *Stage) TearDown() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return Left(errs...)
}

func (s *Stage) setUp(ctx context.Context, set Setting) error {
	needs := append([]devstack.Service{devstack.Postgres}, set.Needs...)
	switch set.Broker {
	case "pubsub":
		needs = append(needs, devstack.PubSub)
	case "kafka":
		needs = append(needs, devstack.Kafka)
	}
	fmt.Fprintln(s.Out, "starting", strings.Trim(fmt.Sprint(needs), "[]"), "…")
	late := time.AfterFunc(5*time.Second, func() {
		fmt.Fprintln(s.Out, "  this takes a while; if PostgreSQL is not installed, it is downloaded now, once")
	})
	stack, err := devstack.Start(ctx, needs...)
	late.Stop()
	if err != nil {
		return err
	}
	s.undo = append(s.undo, stack.Stop)
	s.Services = stack.Services()
	for _, i := range s.Services {
		fmt.Fprintln(s.Out, " ", i)
	}
	name := fmt.Sprintf("%s_%08x", set.Name, rand.Uint32())
	project := strings.ReplaceAll(name, "_", "-")
	s.Config = Config{
		Args: set.Args, Env: stack.Env(), DSN: stack.PostgresDSN(), Schema: name, Broker: set.Broker,
		Project: project, Prefix: project + "-", Redis: stack.RedisAddr(), Duplicates: set.Duplicates,
	}
	if err := Setenv(s.Config.Env); err != nil {
		return err
	}
	for range set.Addresses {
		address, err := quietport.Address(ctx)
		if err != nil {
			return err
		}
		s.Config.Addresses = append(s.Config.Addresses, address)
	}
	if s.Pool, err = NewPool(ctx, s.Config.DSN, name); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error {
		defer s.Pool.Close()
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // also after Ctrl-C
		defer cancel()
		_, err := s.Pool.Exec(dctx, `drop schema if exists `+name+` cascade`)
		return err
	})
	return set.Tables(ctx, s.Pool, name)
}

// Tables returns a function for Setting.Tables that runs migrations and then SQL.
func Tables(sql string, migrations ...func(ctx context.Context, db pgtx.DB, schema string) error) func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	return func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
		for _, migrate := range migrations {
			if err := migrate(ctx, pool, schema); err != nil {
				return err
			}
		}
		_, err := pool.Exec(ctx, sql)
		return err
	}
}

// NewPool connects to the schema.
func NewPool(ctx context.Context, dsn, schema string) (*pgxpool.Pool, error) {
	p, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	p.MaxConns = 24
	p.ConnConfig.RuntimeParams["search_path"] = schema
	return pgxpool.NewWithConfig(ctx, p)
}
