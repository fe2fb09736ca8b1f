package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

const (
	ackDeadline    = 10 * time.Second // Pub/Sub's shortest
	sessionTimeout = 6 * time.Second  // Kafka's shortest
	// stall is how long nothing may move before what is missing counts as lost; a killed consumer's messages come back
	// sooner.
	stall = 2 * ackDeadline
	// quiet is how long nothing may be delivered before the end.
	quiet = 2 * time.Second
)

//go:embed schema.sql
var schemaSQL string

// play starts the services, lets the client complete the labours while processes are killed, and judges.
func play(ctx context.Context, o options, stdout, stderr io.Writer) (v verdict, err error) {
	stage, err := setUp(ctx, o, stdout)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, stage.tearDown()) }()

	logs := io.Discard
	if o.verbose {
		logs = stderr
	}
	c := &counts{}
	var cast cast
	if o.broker == "memory" {
		cast, err = newGoroutines(ctx, stage, c, logs)
	} else {
		cast = newProcesses(ctx, stage.cfg, c.add, logs)
	}
	if err != nil {
		return v, err
	}
	kills := map[string]int{}
	if err = startAll(ctx, cast, o.consumers, c); err == nil {
		kills, err = watch(ctx, stage, o, c, cast, newProgress(stdout))
	}
	cast.close()
	if err != nil {
		return v, err
	}
	if v, err = judge(ctx, stage.pool, stage.sms, o.events, c.get("answered")); err != nil {
		return v, err
	}
	report{verdict: v, counts: c, kills: kills, services: stage.services, without: o.without}.print(stdout)
	return v, nil
}

// stage is what the parts run on.
type stage struct {
	cfg      config
	stack    *devstack.Stack
	pool     *pgxpool.Pool
	sms      *provider
	services []string
	undo     []func() error
}

func (s *stage) tearDown() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	if err := errors.Join(errs...); err != nil {
		return tearDownError{err}
	}
	return nil
}

// tearDownError tells that something could not be removed.
type tearDownError struct{ error }

func (e tearDownError) Unwrap() error { return e.error }

func setUp(ctx context.Context, o options, stdout io.Writer) (*stage, error) {
	s := &stage{}
	if err := s.setUp(ctx, o, stdout); err != nil {
		return nil, errors.Join(err, s.tearDown())
	}
	return s, nil
}

func (s *stage) setUp(ctx context.Context, o options, stdout io.Writer) (err error) {
	needs := []devstack.Service{devstack.Postgres}
	switch o.broker {
	case "pubsub":
		needs = append(needs, devstack.PubSub)
	case "kafka":
		needs = append(needs, devstack.Kafka)
	}
	fmt.Fprintln(stdout, "starting", strings.Trim(fmt.Sprint(needs), "[]"), "…")
	late := time.AfterFunc(5*time.Second, func() {
		fmt.Fprintln(stdout, "  not yet; where PostgreSQL is not installed it is fetched from Maven Central, once")
	})
	s.stack, err = devstack.Start(ctx, needs...)
	late.Stop()
	if err != nil {
		return err
	}
	s.undo = append(s.undo, s.stack.Stop)
	for _, i := range s.stack.Services() {
		kind := "a fake"
		if i.Real {
			kind = "real"
		}
		how := ""
		if o.push && i.Service == devstack.PubSub {
			how = ", by push"
		}
		s.services = append(s.services, fmt.Sprintf("%s: %s (%s)%s", i.Service, i.Source, kind, how))
		fmt.Fprintln(stdout, " ", s.services[len(s.services)-1])
	}
	if o.broker == "memory" {
		s.services = append(s.services, "broker: in memory, in this process")
	}
	var url string
	var stop func()
	if s.sms, url, stop, err = startProvider(ctx); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { stop(); return nil })

	api, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("quickstart_%08x", rand.Uint32())
	s.cfg = config{
		Env: s.stack.Env(), DSN: s.stack.PostgresDSN(), Schema: name, Broker: o.broker, Project: strings.ReplaceAll(name, "_", "-"),
		API: api, SMS: url, Events: o.events, Duplicates: o.duplicates, Without: o.without,
		Rate: rate(o),
	}
	if o.broker == "kafka" {
		s.cfg.Prefix = s.cfg.Project + "-"
	}
	if o.push {
		var stop func()
		if s.cfg.Push, stop, err = startBalancer(ctx, o.consumers); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error { stop(); return nil })
	}
	return s.createTables(ctx)
}

// rate spreads the events over the kills, about one a second.
func rate(o options) float64 {
	const fastest = 400
	return min(float64(o.events)/max(0.9*float64(o.kills), 1), fastest)
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *stage) createTables(ctx context.Context) (err error) {
	if s.pool, err = newPool(ctx, s.cfg); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error {
		defer s.pool.Close()
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, err := s.pool.Exec(dctx, `drop schema if exists `+s.cfg.Schema+` cascade`)
		return err
	})
	if err := outbox.Migrate(ctx, s.pool, s.cfg.Schema); err != nil {
		return err
	}
	if err := claim.Migrate(ctx, s.pool, s.cfg.Schema); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, schemaSQL); err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `insert into labours (id, mother) select i, 'Mother ' || i from generate_series(1, $1::int) as i`, s.cfg.Events)
	return err
}

// cast is the parts at work, as processes or as goroutines.
type cast interface {
	start(role string)
	kill(prefer string) (role string, ok bool)
	failure() <-chan error
	close() // stops all parts and waits for their end
}

// startAll starts everybody, and the client once the subscriptions are there: a message published to a topic without one
// is gone.
func startAll(ctx context.Context, cast cast, consumers int, c *counts) error {
	for range consumers {
		cast.start("consumer")
	}
	cast.start("api")
	cast.start("relay")
	for c.get("subscribed") == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-cast.failure():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	cast.start("client")
	return nil
}

// goroutines is the cast of -broker memory: all parts in this process.
type goroutines struct {
	ctx     context.Context
	stop    context.CancelFunc
	service *service
	running sync.WaitGroup
	failed  chan error
}

func newGoroutines(ctx context.Context, s *stage, c *counts, logs io.Writer) (*goroutines, error) {
	broker, err := transport.NewMemory(transport.MemoryConfig{})
	if err != nil {
		return nil, err
	}
	g := &goroutines{failed: make(chan error, 1)}
	g.ctx, g.stop = context.WithCancel(ctx)
	g.service = &service{cfg: s.cfg, pool: s.pool, broker: broker, count: c.add, log: slog.New(slog.NewTextHandler(logs, nil))}
	return g, nil
}

func (g *goroutines) start(role string) {
	g.running.Go(func() {
		if err := roles[role](g.service, g.ctx); err != nil && g.ctx.Err() == nil {
			select {
			case g.failed <- fmt.Errorf("%s: %w", role, err):
			default:
			}
		}
	})
}

func (g *goroutines) kill(string) (string, bool) { return "", false }
func (g *goroutines) failure() <-chan error      { return g.failed }
func (g *goroutines) close() {
	g.stop()
	g.running.Wait()
	_ = g.service.broker.Close()
}

// watch shows the progress and kills processes, until every effect is there and nothing moves any more, or until nothing
// has moved for so long that what is missing is lost.
func watch(ctx context.Context, s *stage, o options, c *counts, cast cast, p *progress) (map[string]int, error) {
	kills, killed := map[string]int{}, 0
	killable := []string{"api", "relay", "consumer"}
	span := time.Duration(float64(o.events) / s.cfg.Rate * float64(time.Second)) // of the client's requests
	next := func() time.Time {                                                   // at random moments, one a span/kills on average
		return time.Now().Add(time.Duration((0.5 + rand.Float64()) * float64(span) / float64(max(o.kills, 1)) * 0.95))
	}
	killAt, moved, lastKill := next(), time.Now(), time.Time{}
	var last state
	deliveries := 0
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return kills, ctx.Err()
		case err := <-cast.failure():
			return kills, err
		case <-tick.C:
		}
		now := time.Now()
		if killed < o.kills && now.After(killAt) {
			if role, ok := cast.kill(killable[killed%len(killable)]); ok {
				kills[role]++
				killed++
				killAt, lastKill = next(), now
			}
		}
		st, err := readState(ctx, s.pool)
		if err != nil {
			return kills, err
		}
		if d := c.get("deliveries"); st != last || d != deliveries {
			last, deliveries, moved = st, d, now
		}
		p.show(st, o.events, killed, o.kills)
		all := st.completed == o.events && c.get("answered") == o.events && st.notified == o.events && st.thanked == o.events && st.outbox == 0
		// A killed process may hold messages that come back after the ack deadline, and those could double an effect.
		settled := killed >= o.kills && now.Sub(moved) >= quiet && now.Sub(lastKill) >= ackDeadline+quiet
		switch {
		case all && settled:
			p.done("every effect is there, and nothing moves any more")
			return kills, nil
		case now.Sub(moved) >= stall && settled:
			p.done(fmt.Sprintf("nothing has moved for %v", stall))
			return kills, nil
		}
	}
}
