// Package gauge reports values that are read when metrics are collected.
package gauge

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Group is a group of gauges that are reported together. It is not safe for concurrent use.
type Group struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

// Of returns an empty group.
func Of(meter metric.Meter) *Group { return &Group{meter: meter} }

// Int adds a gauge. Report returns its error.
func (g *Group) Int(name, unit, description string) metric.Int64ObservableGauge {
	made, err := g.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	g.all, g.err = append(g.all, made), errors.Join(g.err, err)
	return made
}

// Float adds a gauge. Report returns its error.
func (g *Group) Float(name, unit, description string) metric.Float64ObservableGauge {
	made, err := g.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	g.all, g.err = append(g.all, made), errors.Join(g.err, err)
	return made
}

// Report calls f at each collection, until stop is called.
func (g *Group) Report(f metric.Callback) (stop func(), err error) {
	if g.err != nil {
		return nil, g.err
	}
	registration, err := g.meter.RegisterCallback(f, g.all...)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil // it cannot fail
}

const (
	// askEvery bounds how often collections run the query, because there may be several readers.
	askEvery = 5 * time.Second
	// askTimeout keeps a collection within a scrape's timeout, 10 s by default, if nothing answers: other components query too, one after
	// the other.
	askTimeout = 2 * time.Second
)

// Question is a query that runs at most every few seconds; in between it returns its last answer. It is safe for concurrent use.
type Question[T any] struct {
	ask func(context.Context) (T, error)

	mu     sync.Mutex
	asked  time.Time
	answer T
}

// Ask returns a Question that runs ask.
func Ask[T any](ask func(context.Context) (T, error)) *Question[T] { return &Question[T]{ask: ask} }

// Answer runs the query, unless the last answer is recent. An error is not stored.
func (q *Question[T]) Answer(ctx context.Context) (T, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.asked.IsZero() && time.Since(q.asked) < askEvery {
		return q.answer, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := q.ask(ctx)
	if err != nil {
		return answer, err
	}
	q.asked, q.answer = time.Now(), answer
	return answer, nil
}
