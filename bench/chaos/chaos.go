// Package chaos attacks a system of Millrace's parts and looks whether its promises hold: HTTP requests with idempotency
// keys, an outbox, relays, a broker, consumers under claims and an effect ledger, in processes of their own. Faults come by
// a schedule that a seed determines. An auditor, which shares no code with the library, then compares what clients were
// told, the business tables and the provider's log.
//
// A run with one mechanism switched off (Config.Without) must be caught by the auditor, or it would prove nothing.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// patience is how long nothing may move, after the faults, before what is missing counts as lost or stuck. Google's
	// emulator delivers what a killed consumer held only after some time, and may hand it to another one that is gone.
	patience = 3 * time.Minute
	// settleWithin bounds it all.
	settleWithin = 15 * time.Minute
	// quiet is how long things must stay complete: a double may come late.
	quiet = 3 * time.Second
	look  = 500 * time.Millisecond
)

// Config says what Run does.
type Config struct {
	Broker   string        // PubSub or Kafka. Required.
	Seed     int64         // of the schedule
	Duration time.Duration // of the faults. Required.
	Without  string        // the mechanism that is switched off. Default: none.
	Kinds    []string      // of faults. Default: all that the broker allows.
	Patience time.Duration // how long nothing may move before what is missing counts as lost. Default: 3 min.
	Out      io.Writer     // gets the schedule and the progress. Required.
	Logs     io.Writer     // gets what the processes log. Default: nobody.
}

func (c Config) validate() error {
	var errs []error
	if c.Broker != PubSub && c.Broker != Kafka {
		errs = append(errs, fmt.Errorf("-broker is %q: want %s or %s", c.Broker, PubSub, Kafka))
	}
	if c.Duration < time.Second || c.Duration > 24*time.Hour {
		errs = append(errs, fmt.Errorf("-duration is %v: want 1s to 24h", c.Duration))
	}
	if _, known := findSabotage(c.Without); c.Without != "" && !known {
		errs = append(errs, fmt.Errorf("-without is %q: want one of %v", c.Without, Sabotages()))
	}
	for _, name := range c.Kinds {
		if len(kindsOn(Kafka, name)) == 0 {
			errs = append(errs, fmt.Errorf("-kinds has %q: want some of %v", name, kindNames()))
		}
	}
	if len(errs) == 0 && len(kindsOn(c.Broker, c.Kinds...)) == 0 {
		errs = append(errs, fmt.Errorf("-kinds has no kind of fault for %s", c.Broker))
	}
	return errors.Join(errs...)
}

// Run starts everything, lets the faults happen, waits until nothing moves, and returns what the auditor found. Its error
// says that it could not run; what was found is no error.
func Run(ctx context.Context, cfg Config) (r *Result, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Patience == 0 {
		cfg.Patience = patience
	}
	if cfg.Logs == nil {
		cfg.Logs = io.Discard
	}
	kinds := kindsOn(cfg.Broker, cfg.Kinds...)
	faults := newSchedule(cfg.Seed, cfg.Duration, kinds)
	fmt.Fprintf(cfg.Out, "chaos on %s, seed %d, %d faults of %d kinds in %v\n", cfg.Broker, cfg.Seed, len(faults), len(kinds), cfg.Duration)
	for _, f := range faults {
		fmt.Fprintln(cfg.Out, f)
	}
	stack, err := startStack(ctx, cfg.Broker)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stack.stop()) }()
	provider, err := startProvider()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, provider.stop()) }()
	stack.cfg.Provider, stack.cfg.Without = provider.address, cfg.Without
	s := &system{stack: stack, provider: provider, driver: newDriver(stack.cfg.Addresses)}
	dctx, abandon := context.WithCancel(ctx)
	var driving sync.WaitGroup
	defer driving.Wait()
	defer abandon()
	if cfg.Broker == PubSub {
		if s.observer, err = newObserver(ctx, stack.address, stack.cfg.Project); err != nil {
			return nil, err
		}
		defer s.observer.client.Close() //nolint:errcheck // it has read what there was
		driving.Go(func() { s.observer.observe(dctx) })
	}
	s.cast = newCast(ctx, stack.cfg, cfg.Logs)
	defer s.cast.close()

	enough := make(chan struct{})
	driving.Go(func() { s.driver.drive(dctx, enough) })
	if err := s.awaitFlow(ctx); err != nil {
		return nil, fmt.Errorf("nothing went all the way before the first fault: %w; processes that ended: %v", err, s.cast.restarts())
	}
	r = &Result{Config: cfg, Services: stack.facts, Kinds: kinds, Began: time.Now()}
	fctx, over := s.untilCaught(ctx, cfg.Without)
	r.Faults = s.befall(fctx, faults, kinds)
	over()
	close(enough)
	r.Ended = time.Now()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	fmt.Fprintf(cfg.Out, "all faults are over after %v; waiting until nothing moves\n", r.Ended.Sub(r.Began).Round(time.Second))
	if err := s.settle(ctx, r); err != nil {
		return nil, err
	}
	s.cast.close() // a process that does not stop now has ended without a fault
	return r, s.tell(ctx, r)
}

// awaitFlow waits until the system works, so that faults befall something.
func (s *system) awaitFlow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		c, err := s.count(ctx)
		if err != nil || c.Notices > 0 {
			return err
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
}

// settle waits until everything is complete and stays so, or until nothing has moved for so long that what is missing is
// lost or stuck. A run without a mechanism is over as soon as what must be found is, if that cannot be undone.
func (s *system) settle(ctx context.Context, r *Result) error {
	deadline := time.Now().Add(settleWithin)
	var last counts
	for moved, told := time.Now(), time.Now(); ; {
		c, err := s.count(ctx)
		if err != nil {
			return err
		}
		if c != last {
			last, moved = c, time.Now()
		}
		r.Counts = c
		still := time.Since(moved)
		if c.complete() && still > quiet || still > r.Config.Patience || time.Now().After(deadline) {
			return s.judge(ctx, r, true)
		}
		if r.Config.Without != "" {
			if err := s.judge(ctx, r, false); err != nil || caught(r.Config.Without, r.Findings) {
				return err
			}
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(r.Config.Out, "%+v, unchanged for %v\n", c, still.Round(time.Second))
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
}

func (s *system) judge(ctx context.Context, r *Result, end bool) (err error) {
	r.Findings, err = s.audit(ctx, end)
	slices.SortStableFunc(r.Findings, func(a, b finding) int { return a.At.Compare(b.At) })
	return err
}
