// Package meter measures requests to brokers, from the bytes on their connections: those of sarama and our own ones.
package meter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Meter reports requests to OpenTelemetry. It is safe for concurrent use.
type Meter struct {
	duration, throttle metric.Float64Histogram
	options            sync.Map // attributes → metric.MeasurementOption, because building one costs more than measuring
}

// attributes tell one measurement from another.
type attributes struct{ address, request string }

// New returns a meter of that instrumentation scope.
func New(provider metric.MeterProvider, scope string) (*Meter, error) {
	m, of := &Meter{}, provider.Meter(scope)
	var errs [2]error
	m.duration, errs[0] = of.Float64Histogram("millrace.kafka.request.duration", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .003, .01, .03, .1, .3, 1, 3, 10),
		metric.WithDescription("How long brokers took to answer requests."))
	m.throttle, errs[1] = of.Float64Histogram("millrace.kafka.request.throttle", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.01, .03, .1, .3, 1, 3, 10),
		metric.WithDescription("How long brokers let this process wait because of a quota, by the request for which they did."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.kafka.request: %w", err)
	}
	return m, nil
}

// Watch returns a connection to the broker at the address whose requests are measured. Each request must be written in one call.
func (m *Meter) Watch(c net.Conn, address string) net.Conn {
	return &watched{Conn: c, meter: m, address: address, requests: map[int32]request{}}
}

func (m *Meter) measure(address string, a answer, took time.Duration) {
	ctx, of := context.Background(), attributes{address, a.name}
	option, ok := m.options.Load(of)
	if !ok {
		option = metric.WithAttributeSet(attribute.NewSet(attribute.String("server.address", address), attribute.String("millrace.request", a.name)))
		m.options.Store(of, option)
	}
	m.duration.Record(ctx, took.Seconds(), option.(metric.MeasurementOption))
	if a.throttle > 0 {
		m.throttle.Record(ctx, a.throttle.Seconds(), option.(metric.MeasurementOption))
	}
}

// watched is a connection whose requests are measured. Read and Write may be called at the same time, as of any net.Conn.
type watched struct {
	net.Conn
	meter   *Meter
	address string
	stream  stream // of answers

	mu       sync.Mutex
	requests map[int32]request // without an answer yet, by their correlation IDs
}

// Write implements net.Conn.
func (w *watched) Write(b []byte) (int, error) {
	if r, id, ok := requestIn(b); ok {
		r.at = time.Now()
		w.mu.Lock()
		w.requests[id] = r
		w.mu.Unlock()
	}
	return w.Conn.Write(b)
}

// Read implements net.Conn.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.stream.take(b[:n], func(frame *frame) {
		w.mu.Lock()
		id := frame.id()
		r, ok := w.requests[id]
		delete(w.requests, id)
		w.mu.Unlock()
		if ok {
			w.meter.measure(w.address, r.answer(frame), time.Since(r.at))
		}
	})
	return n, err
}
