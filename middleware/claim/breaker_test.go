package claim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

var errOut = errors.New("the provider does not answer")

func at(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// The provider that a handler calls is out for much longer than all attempts of an event take. No event becomes a dead letter, few
// attempts count, and once it is back each event has its effect. Without a breaker events become dead letters.
func TestCircuitBreakerInAnOutage(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	const events = 30
	all := maps.Clone(modes)
	all["keys in order"] = claim.Config{Ordered: true}
	for mode, cfg := range all {
		for name, with := range map[string]bool{"with a breaker": true, "without one": false} {
			if !with && mode != "eager" {
				continue // what shows that the events need it is the same in each
			}
			t.Run(mode+"/"+name, func(t *testing.T) {
				t.Parallel()
				f, cfg := newFixture(t), cfg
				m := f.broker()
				var back atomic.Bool
				var calls atomic.Int32
				cfg.MaxAttempts, cfg.Backoff, cfg.Service, cfg.Logger = 5, at(time.Millisecond), "labour", silent
				if with {
					cfg.Breaker = claim.Breaker{Failures: 3, Pause: 5 * time.Millisecond, MaxPause: 40 * time.Millisecond}
				}
				c, err := claim.New(f.store, cfg)
				require.NoError(t, err)
				f.consume(m, c, func(msg *message.Message) error {
					if calls.Add(1); !back.Load() {
						return errOut
					}
					return f.take(msg)
				})
				for n := range events {
					f.publish(m, keyed(outbox.NewID(), fmt.Sprint(n%10)))
				}
				dead := func() (n int) {
					for _, row := range f.failed() {
						if row.State == "dead" {
							n++
						}
					}
					return n
				}
				if !with {
					f.eventually(func() bool { return dead() > 0 }, "events become dead letters")
					return
				}
				f.eventually(func() bool { return calls.Load() > 5*5 }, "one is tried from time to time")
				require.Len(t, c.Paused(), 1)
				assert.Equal(t, "labour/notify", c.Paused()[0].Consumer)
				assert.Contains(t, c.Paused()[0].Error, errOut.Error())
				counted := 0
				for _, row := range f.failed() {
					counted += row.Attempts
				}
				assert.LessOrEqual(t, counted, 5, "attempts of the first few, in the whole outage")
				back.Store(true)
				f.eventually(func() bool { return len(f.effects()) == events && len(f.failed()) == 0 }, "everything goes on")
				assert.Empty(t, c.Paused())
				for id, n := range f.effects() {
					assert.Equal(t, 1, n, id)
				}
			})
		}
	}
}

// tries handles an event once, with that error, and reports whether its handler was called.
type tries struct {
	*fixture
	guard message.HandlerMiddleware
}

func (x tries) try(id string, result error) (called bool, err error) {
	msg, _ := deliver(x.t, id)
	_, err = x.guard(func(*message.Message) ([]*message.Message, error) {
		called = true
		return nil, result
	})(msg)
	return called, err
}

func (x tries) state(id string) string {
	for _, row := range x.failed() {
		if row.EventID == id {
			return fmt.Sprint(row.State, " ", row.Reason, " ", row.Attempts)
		}
	}
	return ""
}

// A pause begins with failures of different events in a row, and with nothing else. No failure that is followed by others is the last
// attempt, not even of an event that may fail only once.
func TestCircuitBreakerOpens(t *testing.T) {
	t.Parallel()
	type attempt struct {
		event string
		err   error
	}
	fails := func(events ...string) (all []attempt) {
		for _, e := range events {
			all = append(all, attempt{e, errOut})
		}
		return all
	}
	skipping := errors.New("left out on purpose")
	for name, c := range map[string]struct {
		attempts []attempt
		paused   bool
	}{
		"different events":                 {fails("a", "b", "c"), true},
		"two events that take turns":       {fails("a", "b", "a"), true},
		"one event, again and again":       {fails("a", "a", "a", "a", "a", "a"), false},
		"others succeed":                   {append(append(fails("a", "b"), attempt{"good", nil}), fails("a", "b")...), false},
		"others are left out":              {append(append(fails("a", "b"), attempt{"good", skipping}), fails("c")...), true},
		"others are duplicates":            {append(append(fails("a", "b"), attempt{"done", nil}), fails("c")...), true},
		"errors that say so":               {[]attempt{{"a", claim.Permanent(errOut)}, {"b", claim.Permanent(errOut)}, {"c", claim.Permanent(errOut)}}, false},
		"errors that say when to retry":    {[]attempt{{"a", later(0)}, {"b", later(0)}, {"c", later(0)}, {"d", later(0)}}, false},
		"an open breaker of the handler's": {[]attempt{{"a", gobreaker.ErrOpenState}, {"b", gobreaker.ErrOpenState}, {"c", gobreaker.ErrOpenState}, {"d", gobreaker.ErrOpenState}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			cl := f.claim(claim.Config{MaxAttempts: 100, Logger: silent, Breaker: claim.Breaker{Failures: 3, Pause: time.Hour, MaxPause: time.Hour}})
			x := tries{f, cl.Middleware}
			_, err := x.try("done", nil)
			require.NoError(t, err)
			for _, a := range c.attempts {
				result := a.err
				if errors.Is(result, skipping) {
					msg, _ := deliver(t, a.event)
					_, err := x.guard(func(msg *message.Message) ([]*message.Message, error) {
						claim.Skip(msg.Context())
						return nil, nil
					})(msg)
					require.NoError(t, err)
					continue
				}
				called, _ := x.try(a.event, result)
				assert.Equal(t, a.event != "done", called)
			}
			assert.Len(t, cl.Paused(), map[bool]int{true: 1}[c.paused])
			msg, d := deliver(t, "next")
			_, err = x.guard(f.handler)(msg)
			require.NoError(t, err)
			assert.Equal(t, c.paused, nacked(msg), "without an error, which could reach a poison queue")
			if c.paused {
				assert.Empty(t, f.effects())
				assert.Positive(t, d.retryAfter)
				assert.LessOrEqual(t, d.retryAfter, 5*time.Second, "it must be back soon after the pause")
			}
		})
	}
}

// Each consumer has the thresholds of its handler, and those of the claim where its handler says nothing.
func TestCircuitBreakerByHandler(t *testing.T) {
	t.Parallel()
	off := claim.Breaker{Failures: -1}
	for name, c := range map[string]struct {
		all, own claim.Breaker
		failures int // that pause the consumer; 0: it never pauses
	}{
		"the claim's":              {claim.Breaker{Failures: 4}, claim.Breaker{}, 4},
		"the handler's":            {claim.Breaker{Failures: 4}, claim.Breaker{Failures: 2}, 2},
		"the handler's alone":      {claim.Breaker{}, claim.Breaker{Failures: 3}, 3},
		"off for the handler":      {claim.Breaker{Failures: 4}, off, 0},
		"off for all":              {claim.Breaker{}, claim.Breaker{}, 0},
		"only a pause is its own":  {claim.Breaker{Failures: 4}, claim.Breaker{Pause: time.Hour}, 4},
		"only a bound is its own":  {claim.Breaker{Failures: 4, Pause: time.Hour}, claim.Breaker{MaxPause: time.Minute}, 4},
		"failures are not its own": {claim.Breaker{Failures: 4, MaxPause: 2 * time.Second}, claim.Breaker{Pause: time.Minute}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.all.Failures > 0 && c.all.Pause == 0 && c.all.MaxPause == 0 {
				c.all.Pause = time.Minute // the test must not outlast it
			}
			cl := f.claim(claim.Config{MaxAttempts: 100, Logger: silent, Breaker: c.all, Handlers: map[string]claim.HandlerConfig{
				"notify": {Breaker: c.own}, "bill": {Breaker: off},
			}})
			x, failed := tries{f, cl.Middleware}, 0
			for len(cl.Paused()) == 0 && failed < 10 {
				called, _ := x.try(outbox.NewID(), errOut)
				require.True(t, called)
				failed++
			}
			if c.failures == 0 {
				assert.Empty(t, cl.Paused())
				return
			}
			assert.Equal(t, c.failures, failed)
		})
	}
	for problem, own := range map[string]claim.Breaker{
		`Config.Handlers["notify"].Breaker.Failures is 1: want 2 or more, or -1`:         {Failures: 1},
		`Config.Handlers["notify"].Breaker.Failures is -1, for no breaker, beside a`:     {Failures: -1, Pause: time.Second},
		`Config.Handlers["notify"].Breaker.Pause is -1ns`:                                {Failures: 2, Pause: -1},
		`Config.Handlers["notify"].Breaker.MaxPause is 1s: want Pause (1m0s)`:            {Failures: 2, Pause: time.Minute, MaxPause: time.Second},
		`Config.Handlers["notify"].Breaker has a pause, but neither its Failures nor Co`: {MaxPause: time.Minute},
	} {
		_, err := claim.New(storeOfNothing{}, claim.Config{Service: "labour", Handlers: map[string]claim.HandlerConfig{"notify": {Breaker: own}}})
		require.ErrorContains(t, err, problem)
	}
	_, err := claim.New(storeOfNothing{}, claim.Config{Service: "labour", Breaker: off})
	require.ErrorContains(t, err, "Config.Breaker.Failures is -1: want 2 or more, or 0 for no breaker")
}

// An event is no dead letter because of an outage, also if it may fail only once; one that fails while others succeed is. That the
// first one of an outage counts cannot be helped: nothing tells it from the other.
func TestCircuitBreakerSparesLastAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	x := tries{f, f.claim(claim.Config{MaxAttempts: 1, Backoff: at(0), Logger: silent, Breaker: claim.Breaker{Failures: 4, Pause: time.Millisecond, MaxPause: time.Millisecond}}).Middleware}
	for _, id := range []string{"good", "poison", "good 2", "first", "second", "third"} {
		result := errOut
		if strings.HasPrefix(id, "good") {
			result = nil
		}
		_, _ = x.try(id, result)
	}
	assert.Equal(t, "dead attempts 1", x.state("poison"))
	assert.Equal(t, "dead attempts 1", x.state("first"))
	assert.Equal(t, "nacked outage 0", x.state("second"))
	assert.Equal(t, "nacked outage 0", x.state("third"))
	for _, id := range []string{"fourth", "fifth"} {
		f.eventually(func() bool { called, _ := x.try(id, errOut); return called }, "it is tried")
		assert.Empty(t, x.state(id), "the broker keeps it, and nothing is counted")
	}
	f.eventually(func() bool { called, err := x.try("second", nil); return called && err == nil }, "what it needs is back")
	_, _ = x.try("third", errOut)
	assert.Equal(t, "dead attempts 1", x.state("third"), "from now on failures count again")
}

// A pause is logged once, as its end is; the gauge and, while Run runs, the database tell of it.
func TestCircuitBreakerTells(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log bytes.Buffer
	reader := sdkmetric.NewManualReader()
	c := f.claim(claim.Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Breaker: claim.Breaker{Failures: 2, Pause: time.Millisecond, MaxPause: time.Millisecond},
	})
	claim.Hasten(c, 10*time.Millisecond, time.Hour)
	stop := f.running(c)
	gauge := func() (paused int64) {
		var all metricdata.ResourceMetrics
		f.eventually(func() bool {
			all = metricdata.ResourceMetrics{}
			return reader.Collect(t.Context(), &all) == nil
		}, "a busy database answers the gauges in time")
		paused = -1
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name == "millrace.claim.paused" {
					paused = m.Data.(metricdata.Gauge[int64]).DataPoints[0].Value
				}
			}
		}
		return paused
	}
	reported := func() []claim.Pause {
		found, err := claim.Pauses(t.Context(), f.pool, f.schema)
		require.NoError(t, err)
		return found
	}
	x := tries{f, c.Middleware}
	_, _ = x.try("good", nil)
	assert.Equal(t, int64(0), gauge())
	assert.Empty(t, reported())

	for _, id := range []string{"a", "b", "c", "d"} {
		f.eventually(func() bool { called, _ := x.try(id, errOut); return called }, "it is tried")
	}
	assert.Equal(t, int64(1), gauge())
	f.eventually(func() bool { return len(reported()) == 1 }, "Run reports it")
	p := reported()[0]
	assert.Equal(t, "labour/notify", p.Consumer)
	assert.Contains(t, p.Error, errOut.Error())
	assert.NotEmpty(t, p.Process)
	assert.WithinDuration(t, c.Paused()[0].Since, p.Since, 10*time.Second)

	f.eventually(func() bool { called, _ := x.try("good 2", nil); return called }, "it is tried")
	assert.Equal(t, int64(0), gauge())
	f.eventually(func() bool { return len(reported()) == 0 }, "Run reports that it is over")
	stop()
	assert.Equal(t, 1, strings.Count(log.String(), "consumer pauses"))
	assert.Equal(t, 1, strings.Count(log.String(), "consumer goes on"))
}

// A store without PostgreSQL counts no attempts, and its consumers pause all the same.
func TestCircuitBreakerOfAnotherStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(storeOfNothing{}, claim.Config{
		Service: "labour", Logger: silent, Consumer: func(string) string { return "notify" },
		Breaker: claim.Breaker{Failures: 2, Pause: time.Hour, MaxPause: time.Hour},
	})
	require.NoError(t, err)
	x := tries{f, c.Middleware}
	for _, id := range []string{"a", "b"} {
		_, err := x.try(id, errOut)
		require.ErrorIs(t, err, errOut)
	}
	called, err := x.try("c", nil)
	require.NoError(t, err)
	assert.False(t, called)
}

// storeOfNothing is a store that claims every event.
type storeOfNothing struct{}

func (storeOfNothing) Do(ctx context.Context, _ claim.Key, fn func(context.Context) error) error {
	return fn(ctx)
}
func (storeOfNothing) Stage(context.Context, string, ...*message.Message) error { return nil }
