package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/quietport"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
)

// The brokers.
const (
	PubSub = "pubsub"
	Kafka  = "kafka"
)

// adminWithin is how long a question to a server that is down is repeated.
const adminWithin = 2 * time.Minute

// stack is the services and the network between them and the system.
type stack struct {
	server   *devstack.Server
	cluster  *devstack.KafkaCluster // nil on Pub/Sub
	database *devtest.Proxy
	broker   *devtest.Proxy
	pool     *pgxpool.Pool // past the network, for the auditor
	address  string        // of the broker, past the network
	facts    []string
	cfg      config
	undo     []func() error
}

func startStack(ctx context.Context, broker string) (s *stack, err error) {
	s = &stack{cfg: config{Broker: broker, Project: fmt.Sprintf("chaos-%08x", rand.Uint32())}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	s.server, err = devstack.StartServer(ctx, devstack.ServerConfig{Settings: map[string]string{
		"max_connections": "120",
		// The server cannot see that a client has vanished in the network, and would keep its transaction for ever.
		"idle_in_transaction_session_timeout": "15s",
	}})
	if err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.server.Stop, soon(s.server.Crash)) // an orderly end takes long, and nothing is kept
	s.facts = append(s.facts, s.server.Source())
	s.address, err = s.startBroker(ctx, broker)
	if err != nil {
		return s, err
	}
	network := devtest.Example()
	s.undo = append(s.undo, func() error { network.End(); return nil })
	s.database, s.broker = devtest.NewProxy(network, s.server.Address()), devtest.NewProxy(network, s.address)
	dsn, err := url.Parse(s.server.DSN())
	if err != nil {
		return s, err
	}
	dsn.Host = s.database.Address()
	s.cfg.DSN, s.cfg.PubSub, s.cfg.Kafka, s.cfg.KafkaVia = dsn.String(), s.broker.Address(), s.address, s.broker.Address()
	for range perRole {
		address, err := quietport.Address(ctx)
		if err != nil {
			return s, err
		}
		s.cfg.Addresses = append(s.cfg.Addresses, address)
	}
	if s.pool, err = pgxpool.New(ctx, s.server.DSN()); err != nil {
		return s, err
	}
	s.undo = append(s.undo, func() error { s.pool.Close(); return nil })
	return s, s.migrate(ctx)
}

func (s *stack) startBroker(ctx context.Context, broker string) (address string, err error) {
	if broker == Kafka {
		if s.cluster, err = devstack.StartKafka(ctx, devstack.KafkaConfig{Brokers: 1}); err != nil {
			return "", err
		}
		s.undo = append(s.undo, s.cluster.Stop, soon(func(ctx context.Context) error { return s.cluster.Kill(ctx, 1) }))
		s.facts = append(s.facts, s.cluster.Source())
		return s.cluster.Brokers()[0], nil
	}
	services, err := devstack.Start(ctx, devstack.PubSub)
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, services.Stop)
	s.facts = append(s.facts, services.Services()[0].Source)
	return services.PubSubHost(), nil
}

func (s *stack) migrate(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, businessSQL); err != nil {
		return err
	}
	return errors.Join(outbox.Migrate(ctx, s.pool, schema), claim.Migrate(ctx, s.pool, schema),
		effect.Migrate(ctx, s.pool, schema), idempotencykey.Migrate(ctx, s.pool, schema))
}

func (s *stack) stop() (err error) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, s.undo[i]())
	}
	return err
}

// soon is a function with a deadline that also holds after Ctrl-C.
func soon(fn func(context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), againWithin)
		defer cancel()
		return fn(ctx)
	}
}

// admin calls fn with a connection past the network, as soon as the server gives one.
func (s *stack) admin(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // fn's error counts
	return fn(conn)
}

func (s *stack) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, adminWithin)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.server.DSN())
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		_ = pause(ctx, restartWait) // the loop sees its end
	}
}
