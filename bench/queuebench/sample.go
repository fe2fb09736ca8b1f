package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/transport"
)

const depthEvery = time.Second

// manifest is adapter.json, which the harness reads before it starts the adapter.
type manifest struct {
	System     string   `json:"system"`
	DBName     string   `json:"db_name"`
	Tables     []string `json:"event_tables"`
	Indexes    []string `json:"event_indexes"`
	Extensions []string `json:"extensions"`
}

// descriptor is the first line of the output. Its tables are the manifest's and, since the record of handled events has a table for each
// day, that of today.
func (a *adapter) descriptor(database string) any {
	return struct {
		Kind string `json:"kind"`
		manifest
		DBName    string `json:"db_name"`
		Version   string `json:"version"`
		Schema    string `json:"schema_version"`
		StartedAt string `json:"started_at"`
		Instance  int    `json:"instance_id"`
	}{"descriptor", manifest{
		System: a.manifest.System, Indexes: a.manifest.Indexes, Extensions: a.manifest.Extensions,
		Tables: append(a.manifest.Tables, "millrace.processed_"+time.Now().UTC().Format("20060102")),
	}, database, revision(), "current", stamp(time.Now()), a.instance}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// sample is a line of the output.
type sample struct {
	T           string  `json:"t"`
	System      string  `json:"system"`
	Instance    int     `json:"instance_id"`
	Kind        string  `json:"kind"`
	SubjectKind string  `json:"subject_kind"`
	Subject     string  `json:"subject"`
	Metric      string  `json:"metric"`
	Value       float64 `json:"value"`
	Window      float64 `json:"window_s"`
}

// report writes the samples at each full SAMPLE_EVERY_S of the wall clock, until ctx ends.
func (a *adapter) report(ctx context.Context, lines *json.Encoder) error {
	last, enqueued, completed := time.Now(), a.enqueued.Load(), a.completed.Load()
	for {
		next := time.Now().Truncate(a.sampleEvery).Add(a.sampleEvery)
		if !wait.For(ctx, time.Until(next)) {
			return nil
		}
		now := time.Now()
		passed, nowEnqueued, nowCompleted := now.Sub(last).Seconds(), a.enqueued.Load(), a.completed.Load()
		waits, every := a.waits.percentiles(now, 0.5, 0.95, 0.99), a.sampleEvery.Seconds()
		samples := []sample{
			{Metric: "claim_p50_ms", Value: waits[0], Window: windowSeconds},
			{Metric: "claim_p95_ms", Value: waits[1], Window: windowSeconds},
			{Metric: "claim_p99_ms", Value: waits[2], Window: windowSeconds},
			{Metric: "enqueue_rate", Value: float64(nowEnqueued-enqueued) / passed, Window: every},
			{Metric: "completion_rate", Value: float64(nowCompleted-completed) / passed, Window: every},
		}
		if a.instance == 0 {
			samples = append(samples, sample{Metric: "queue_depth", Value: float64(a.depth.Load())},
				sample{Metric: "producer_target_rate", Value: float64(a.target.Load())})
		}
		for _, s := range samples {
			s.T, s.System, s.Instance, s.Kind, s.SubjectKind = stamp(now), a.manifest.System, a.instance, "adapter", "adapter"
			if err := lines.Encode(s); err != nil {
				return err
			}
		}
		last, enqueued, completed = now, nowEnqueued, nowCompleted
	}
}

// measureDepth keeps the depth up to date until ctx ends.
func (a *adapter) measureDepth(ctx context.Context) error {
	for wait.For(ctx, depthEvery) {
		depth, err := a.waiting(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("measure the depth", "error", err)
			}
			continue
		}
		a.depth.Store(max(depth, 0))
	}
	return nil
}

// waiting is how many jobs nobody has taken up: the outbox and, of a broker that can tell, what was not acked. A broker in memory holds
// what this process has published; so that is what it found and inserted and has not started.
func (a *adapter) waiting(ctx context.Context) (int64, error) {
	inspector, ok := a.service.Transport().(transport.Inspector)
	if !ok {
		return a.found + a.enqueued.Load() - a.started.Load(), nil
	}
	rows, err := a.inOutbox(ctx)
	if err != nil {
		return 0, err
	}
	there, err := inspector.Inspect(ctx, a.jobs.Name(), serviceName+"."+handlerName)
	return rows + max(there.Lag, 0), err
}

func (a *adapter) inOutbox(ctx context.Context) (n int64, err error) {
	err = a.service.Pool().QueryRow(ctx, `select count(*) from millrace.outbox`).Scan(&n)
	return n, err
}
