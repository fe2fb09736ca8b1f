package chaos

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

const (
	// sabotageLasts is how long the faults of a run without a mechanism take.
	sabotageLasts = 20 * time.Second
	// sabotagePatience is shorter than patience: what must be found is found by then, and what is only late does no harm.
	sabotagePatience = 45 * time.Second
)

// sabotage is a mechanism that the processes' own wiring can leave out, the faults that it is there for, and what the
// auditor must find without it: one of these classes.
type sabotage struct {
	name, what string
	kinds      []string
	finds      []string
}

var sabotages = []sabotage{
	{"key", "no idempotency key around the HTTP handler", []string{"cut postgres", "kill service"}, []string{doubled}},
	{"transaction", "the event is published in a transaction of its own, before the order is committed", []string{"slow commits", "kill service", "end backends"}, []string{doubled, invented}},
	{"confirmation", "events are deleted before the broker has confirmed them", []string{"cut broker", "kill relay"}, []string{lost}},
	{"order", "events have no ordering key", []string{"kill relay", "slow commits", "kill consumer", "freeze relay"}, []string{overtaken}},
	{"lease", "the lease of a dead relay does not end", []string{"kill relay"}, []string{stuck}},
	{"claim", "no claim around the handlers", []string{"publish twice", "replay archive"}, []string{doubled}},
	{"unit", "the handler writes outside of the claim's transaction", []string{"slow commits", "kill consumer", "end backends"}, []string{doubled}},
	{"staging", "the handler publishes to the broker, not into the claim's transaction", []string{"slow commits", "kill consumer", "end backends"}, []string{doubled, invented}},
	{"ack", "messages are acked before their handlers have run", []string{"kill consumer", "crash postgres"}, []string{lost}},
	{"ledger", "the effect is called without the ledger", []string{"silent provider", "end backends"}, []string{doubled}},
}

// Sabotages returns the mechanisms that Config.Without may name.
func Sabotages() (names []string) {
	for _, s := range sabotages {
		names = append(names, s.name)
	}
	return names
}

func findSabotage(name string) (sabotage, bool) {
	i := slices.IndexFunc(sabotages, func(s sabotage) bool { return s.name == name })
	if i < 0 {
		return sabotage{}, false
	}
	return sabotages[i], true
}

// Sabotaged runs shortly without the mechanism, under the faults that it is there for, and tells whether it was caught.
func Sabotaged(ctx context.Context, cfg Config, name string) (r *Result, yes bool, err error) {
	s, _ := findSabotage(name) // Run refuses an unknown one
	cfg.Without, cfg.Kinds, cfg.Duration, cfg.Patience = name, s.kinds, sabotageLasts, sabotagePatience
	r, err = Run(ctx, cfg)
	if err != nil {
		return nil, false, err
	}
	return r, caught(name, r.Findings), nil
}

// caught tells whether the auditor found what the missing mechanism lets through.
func caught(without string, found []finding) bool {
	s, _ := findSabotage(without)
	return slices.ContainsFunc(found, func(f finding) bool { return slices.Contains(s.finds, f.Class) })
}

// untilCaught is a context that ends with the other one, or as soon as a missing mechanism is caught for good.
func (s *system) untilCaught(ctx context.Context, without string) (context.Context, func()) {
	ctx, over := context.WithCancel(ctx)
	var looking sync.WaitGroup
	if without != "" {
		looking.Go(func() {
			for pause(ctx, look) == nil {
				if found, err := s.audit(ctx, false); err == nil && caught(without, found) {
					over()
				}
			}
		})
	}
	return ctx, func() { over(); looking.Wait() }
}

// Matrix runs without each mechanism in turn, or without cfg.Without alone, and once with all of them under the same faults, and prints what was found.
// It returns false when something was missed, or when something was found where nothing is missing.
func Matrix(ctx context.Context, cfg Config, out io.Writer) (good bool, err error) {
	if err := cfg.validate(); err != nil {
		return false, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nwithout\twhat that means\tcaught")
	for _, class := range classes {
		fmt.Fprintf(w, "\t%s", class)
	}
	fmt.Fprintln(w)
	row := func(name, what, verdict string, r *Result) {
		fmt.Fprintf(w, "%s\t%s\t%s", name, what, verdict)
		for _, class := range classes {
			fmt.Fprintf(w, "\t%d", r.Count(class))
		}
		fmt.Fprintln(w)
	}
	chosen := sabotages
	if s, known := findSabotage(cfg.Without); known {
		chosen = []sabotage{s}
	}
	good = true
	for _, s := range chosen {
		r, yes, err := Sabotaged(ctx, cfg, s.name)
		if err != nil {
			return false, fmt.Errorf("without %s: %w", s.name, err)
		}
		verdict := "yes"
		if !yes {
			good, verdict = false, "NO"
		}
		row(s.name, s.what, verdict, r)
		fmt.Fprintf(cfg.Out, "without %s: caught: %s; %s\n", s.name, verdict, r.Summary())
	}
	for _, s := range chosen {
		for _, k := range s.kinds {
			if !slices.Contains(cfg.Kinds, k) {
				cfg.Kinds = append(cfg.Kinds, k)
			}
		}
	}
	cfg.Without, cfg.Duration = "", 2*sabotageLasts
	r, err := Run(ctx, cfg)
	if err != nil {
		return false, err
	}
	verdict := "nothing"
	if !r.Good() {
		good, verdict = false, "SOMETHING"
		if err := r.Write(cfg.Out); err != nil {
			return false, err
		}
	}
	row("-", "all mechanisms, under the same faults", verdict, r)
	return good, w.Flush()
}
