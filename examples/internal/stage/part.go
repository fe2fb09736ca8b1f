package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const (
	ackDeadline    = 10 * time.Second // Pub/Sub's shortest: how soon the messages of a killed consumer are redelivered
	sessionTimeout = 6 * time.Second  // Kafka's shortest
)

// Part is one part of an example, in its own process or, on the memory broker, in a goroutine.
type Part struct {
	Config
	Log   *slog.Logger
	Count func(what string) // reports to the main process line by line, so that a kill loses no count

	Pool   *pgxpool.Pool       // after Connect
	Broker transport.Transport // after Connect; in memory, shared by all parts
}

// Roles are the parts of an example, by name.
type Roles map[string]func(ctx context.Context, p *Part) error

// Main is the Role of a Command.
func (r Roles) Main() int { return role.Play(r.play) }

func (r Roles) play(ctx context.Context, cfg Config, _ <-chan string) error {
	if err := Setenv(cfg.Env); err != nil {
		return err
	}
	var mu sync.Mutex
	return r[role.Name()](ctx, &Part{
		Config: cfg,
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", role.Name(), "pid", os.Getpid()),
		Count: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(what)
		},
	})
}

// Setenv sets the addresses of the services for this process.
func Setenv(env []string) error {
	for _, line := range env {
		name, value, _ := strings.Cut(line, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// Connect opens Pool and Broker, and reports that the part is running. The caller must call disconnect.
func (p *Part) Connect(ctx context.Context) (disconnect func(), err error) {
	if p.Pool, err = NewPool(ctx, p.DSN, p.Schema); err != nil {
		return nil, err
	}
	if p.Config.Broker == "memory" {
		return p.Pool.Close, nil
	}
	if p.Broker, err = p.newBroker(ctx, p.Log); err != nil {
		p.Pool.Close()
		return nil, err
	}
	p.Count("up")
	return func() {
		_ = p.Broker.Close()
		p.Pool.Close()
	}, nil
}

// newBroker connects to the emulator or the cluster that the environment names.
func (c Config) newBroker(ctx context.Context, log *slog.Logger) (transport.Transport, error) {
	if c.Broker == "kafka" {
		return kafka.New(ctx, kafka.Config{Consumer: kafka.ConsumerConfig{SessionTimeout: sessionTimeout}, Logger: log})
	}
	return pubsub.New(ctx, pubsub.Config{ProjectID: c.Project, Subscription: pubsub.SubscriptionConfig{AckDeadline: ackDeadline}, Logger: log})
}

// Serve serves the handler at the address until ctx ends, and then finishes running requests.
func Serve(ctx context.Context, address string, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return Together(ctx,
		func(context.Context) error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		func(ctx context.Context) error {
			<-ctx.Done()
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			return server.Shutdown(sctx)
		})
}

// Provider serves a third party's API on loopback until stop is called.
func Provider(ctx context.Context, h http.Handler) (address string, stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // ends with Close
	return l.Addr().String(), func() {
		_ = server.Close()
		serving.Wait()
	}, nil
}

// Together runs the functions until ctx ends or one of them fails, and waits for all of them.
func Together(ctx context.Context, fs ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range fs {
		g.Go(func() error { return f(ctx) })
	}
	return g.Wait()
}
