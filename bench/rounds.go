package main

import (
	"context"
	"slices"
)

// entrant is one of those that are measured side by side.
type entrant struct {
	name, note string
	measure    func(ctx context.Context) (rate float64, err error)
}

// rounds measures entrants one after the other, each round in the other order, and keeps their rates.
type rounds struct {
	env    *environment
	unit   string // of the rates
	series []*rates
}

// run measures each entrant once in every round, after before, if there is one.
func (r *rounds) run(ctx context.Context, n int, before func(ctx context.Context) error, all []entrant) error {
	for round := range n {
		if before != nil {
			if err := before(ctx); err != nil {
				return err
			}
		}
		for i := range all {
			if round%2 == 1 {
				i = len(all) - 1 - i
			}
			then := readProcessors()
			rate, err := all[i].measure(ctx)
			if err != nil {
				return err
			}
			r.note(all[i], rate, busySince(then))
			r.env.progress("run %d of %d: %-38s %8s %s", round+1, n, all[i].name, thousands(rate), r.unit)
		}
	}
	return nil
}

func (r *rounds) note(e entrant, rate, busy float64) {
	i := slices.IndexFunc(r.series, func(one *rates) bool { return one.name == e.name })
	if i < 0 {
		i, r.series = len(r.series), append(r.series, &rates{name: e.name, note: e.note})
	}
	r.series[i].perRun, r.series[i].busy = append(r.series[i].perRun, rate), append(r.series[i].busy, busy)
}

// of returns the rates of the entrant of that name; none before it was measured.
func (r *rounds) of(name string) rates {
	i := slices.IndexFunc(r.series, func(one *rates) bool { return one.name == name })
	if i < 0 {
		return rates{name: name}
	}
	return *r.series[i]
}

// all returns the rates in the order in which the entrants were first measured.
func (r *rounds) all() []rates {
	var all []rates
	for _, one := range r.series {
		all = append(all, *one)
	}
	return all
}
