package chaos

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const (
	leaseTTL       = 2 * time.Second  // of the relays' shards
	sessionTimeout = 6 * time.Second  // Kafka's shortest
	ackDeadline    = 10 * time.Second // Pub/Sub's shortest
	handlerTimeout = 10 * time.Second
	poolSize       = 8

	schema  = "chaos" // of Millrace's tables; the business tables are in public
	placed  = "order.placed"
	shipped = "order.shipped"
)

// What a process can be told, followed by a duration.
const (
	tellHold  = "hold"  // take all connections of the pool
	tellTwice = "twice" // publish every event twice
)

// config is what a process of the system needs to know.
type config struct {
	DSN       string
	Broker    string
	PubSub    string // host:port
	Project   string
	Kafka     string   // the broker's address, as it tells its clients
	KafkaVia  string   // where it is reached
	Addresses []string // of the services
	Provider  string
	Without   string // the mechanism that is switched off
	Number    int    // of the process among those of its role
}

// part is a process of the system.
type part struct {
	config
	log    *slog.Logger
	pool   *pgxpool.Pool
	broker transport.Transport
	twice  atomic.Int64 // until when every event is published twice
	owed   atomic.Bool  // the next batch is, also when that time is over
	works  func()       // says once that the process works
}

var roles = map[string]func(*part, context.Context) error{
	"relay":    (*part).relay,
	"service":  (*part).service,
	"consumer": (*part).consumer,
}

// Play is the main function of a process that Run has started. It returns the exit status.
func Play() int {
	return role.Play(func(ctx context.Context, cfg config, told <-chan string) error {
		p := &part{config: cfg, log: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", role.Name(), "pid", os.Getpid())}
		p.works = sync.OnceFunc(func() { fmt.Println("it works") })
		if err := p.connect(ctx); err != nil {
			return err
		}
		// The pool ends with the process: for a connection that the network has forgotten its Close would wait 15 s.
		defer p.broker.Close() //nolint:errcheck // the process ends
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return roles[role.Name()](p, ctx) })
		g.Go(func() error { p.obey(ctx, told); return nil })
		return g.Wait()
	})
}

// Playing tells whether this process was started by Run.
func Playing() bool { return roles[role.Name()] != nil }

func (p *part) connect(ctx context.Context) (err error) {
	cfg, err := pgxpool.ParseConfig(p.DSN)
	if err != nil {
		return err
	}
	cfg.MaxConns = poolSize
	if p.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	if p.Broker == Kafka {
		p.broker, err = kafka.New(ctx, kafka.Config{
			Brokers: []string{p.Kafka}, Logger: p.log, Dial: p.dial,
			Consumer: kafka.ConsumerConfig{SessionTimeout: sessionTimeout},
		})
	} else if err = os.Setenv("PUBSUB_EMULATOR_HOST", p.PubSub); err == nil {
		p.broker, err = pubsub.New(ctx, pubsub.Config{
			ProjectID: p.Project, Logger: p.log, Subscription: pubsub.SubscriptionConfig{AckDeadline: ackDeadline},
		})
	}
	if err != nil {
		p.pool.Close()
	}
	return err
}

// dial reaches the broker by way of the network that faults befall.
func (p *part) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address == p.Kafka {
		address = p.KafkaVia
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// obey does what the process is told.
func (p *part) obey(ctx context.Context, told <-chan string) {
	for {
		select {
		case <-ctx.Done():
			return
		case line := <-told:
			what, text, _ := strings.Cut(line, " ")
			lasts, err := time.ParseDuration(text)
			if err != nil {
				p.log.Error("told something else", "line", line)
				continue
			}
			if what == tellTwice {
				p.owed.Store(true)
				p.twice.Store(time.Now().Add(lasts).UnixNano())
			} else {
				p.holdAll(ctx, lasts)
			}
		}
	}
}

// holdAll takes every connection of the pool that it can get, so that nobody else has one until the time is over.
func (p *part) holdAll(ctx context.Context, lasts time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var held []*pgxpool.Conn
	for range poolSize {
		conn, err := p.pool.Acquire(ctx)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	<-ctx.Done()
	for _, conn := range held {
		conn.Release()
	}
}
