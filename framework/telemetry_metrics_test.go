package framework_test

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport/memory"
)

var updateMetrics = flag.Bool("update-metrics", false, "write the golden file of metrics")

// eager is a provider whose instruments have a value from the moment when they are made.
type eager struct{ metric.MeterProvider }

func (e eager) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return eagerMeter{e.MeterProvider.Meter(name, opts...)}
}

type eagerMeter struct{ metric.Meter }

func (m eagerMeter) Int64Counter(name string, opts ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	i, err := m.Meter.Int64Counter(name, opts...)
	if err == nil {
		i.Add(context.Background(), 0)
	}
	return i, err
}

func (m eagerMeter) Int64UpDownCounter(name string, opts ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	i, err := m.Meter.Int64UpDownCounter(name, opts...)
	if err == nil {
		i.Add(context.Background(), 0)
	}
	return i, err
}

func (m eagerMeter) Int64Gauge(name string, opts ...metric.Int64GaugeOption) (metric.Int64Gauge, error) {
	i, err := m.Meter.Int64Gauge(name, opts...)
	if err == nil {
		i.Record(context.Background(), 0)
	}
	return i, err
}

func (m eagerMeter) Int64Histogram(name string, opts ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	i, err := m.Meter.Int64Histogram(name, opts...)
	if err == nil {
		i.Record(context.Background(), 0)
	}
	return i, err
}

func (m eagerMeter) Float64Histogram(name string, opts ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	i, err := m.Meter.Float64Histogram(name, opts...)
	if err == nil {
		i.Record(context.Background(), 0)
	}
	return i, err
}

func (m eagerMeter) Int64ObservableGauge(name string, opts ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return m.Meter.Int64ObservableGauge(name, append(opts, metric.WithInt64Callback(func(_ context.Context, to metric.Int64Observer) error {
		to.Observe(0)
		return nil
	}))...)
}

func (m eagerMeter) Float64ObservableGauge(name string, opts ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return m.Meter.Float64ObservableGauge(name, append(opts, metric.WithFloat64Callback(func(_ context.Context, to metric.Float64Observer) error {
		to.Observe(0)
		return nil
	}))...)
}

func (m eagerMeter) Int64ObservableCounter(name string, opts ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return m.Meter.Int64ObservableCounter(name, append(opts, metric.WithInt64Callback(func(_ context.Context, to metric.Int64Observer) error {
		to.Observe(0)
		return nil
	}))...)
}

func (m eagerMeter) Float64ObservableCounter(name string, opts ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	return m.Meter.Float64ObservableCounter(name, append(opts, metric.WithFloat64Callback(func(_ context.Context, to metric.Float64Observer) error {
		to.Observe(0)
		return nil
	}))...)
}

const goldenMetrics = "testdata/metrics.golden"

// ours are the names that the project answers for.
var ours = regexp.MustCompile(`\b(millrace|db_client|http_server)_[a-z_]+\b`)

// TestMetricNames: the golden file lists what Prometheus gets of every part.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	require.NoError(t, err)
	provider := eager{sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}
	for _, broker := range []string{"pubsub", "kafka", "transactional"} {
		w := newWorld(t, strings.Replace(broker, "transactional", "kafka", 1))
		if broker == "transactional" {
			content, err := os.ReadFile(w.file)
			require.NoError(t, err)
			w.file = file(t, strings.Replace(string(content), "kafka: {", "kafka: {delivery: transactional, ", 1))
		}
		cfg := w.config()
		cfg.Telemetry.MeterProvider = provider
		if broker == "pubsub" {
			cfg.Outbox.Source, cfg.Outbox.Store = outbox.WAL, outbox.Log
			devtest.DropSlots(t, w.pool, w.schema+"_")
		}
		svc := w.service(cfg)
		require.NoError(t, handle(svc, w.name("c"), w.topic("one"), func(context.Context, string) error { return nil }))
		require.NoError(t, framework.Schedule(svc, "report", "@daily", framework.Topic[reportDue](w.topic("report.due")), dueAt))
		_, err := svc.Keys(idempotencykey.Shared)
		require.NoError(t, err)
		stop := w.start(svc)
		get(t, svc, "/nothing", nil)
		if broker == "pubsub" {
			w.eventually("the ledger and the relay run", func() bool {
				names := gathered(t, registry)
				return slices.Contains(names, "millrace_effect_in_doubt") && slices.Contains(names, "millrace_outbox_wal_reads") && slices.Contains(names, "millrace_outbox_landing_leads")
			})
		}
		if broker == "transactional" {
			w.eventually("transactions are observed", func() bool { return slices.Contains(gathered(t, registry), "millrace_kafka_transactions_total") })
		}
		stop()
	}
	v := newVoyage(t, "kafka", "pubsub")
	migrating := v.config()
	migrating.Telemetry.MeterProvider = provider
	require.NoError(t, v.service(migrating).Close())
	fleet, err := framework.Load(file(t, "service: tenants\nbroker: memory\nfleet: {databases: [{name: a, dsn: 'postgres://127.0.0.1:1/a'}]}\n"), memory.Driver)
	require.NoError(t, err)
	fleet.Telemetry.MeterProvider = provider
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- framework.RunFleet(ctx, fleet) }()
	v.eventually("the fleet is observed", func() bool { return slices.Contains(gathered(t, registry), "millrace_fleet_databases") })
	cancel()
	require.NoError(t, <-ended)
	got := strings.Join(gathered(t, registry), "\n") + "\n"
	if *updateMetrics {
		require.NoError(t, os.WriteFile(goldenMetrics, []byte(got), 0o600))
	}
	want, err := os.ReadFile(goldenMetrics)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "go test ./framework -run TestMetricNames -update-metrics writes it; then see docs/dashboards and docs/alerts.yml")
}

func gathered(t *testing.T, registry *prometheus.Registry) (names []string) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if ours.MatchString(f.GetName()) {
			names = append(names, f.GetName())
		}
	}
	return names
}

// labels are those that expressions may use.
var labels = []string{"millrace_shard", "millrace_consumer", "millrace_outcome", "millrace_state", "millrace_database", "millrace_schedule", "millrace_phase", "db_client_connection_state"}

// TestDashboardAndAlerts: they name metrics that are there, and no others.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile(goldenMetrics)
	require.NoError(t, err)
	known := strings.Fields(string(golden))
	verify := func(where, expression string) {
		names := ours.FindAllString(expression, -1)
		assert.NotEmpty(t, names, where)
		for _, name := range names {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if histogram, ok := strings.CutSuffix(name, suffix); ok && !slices.Contains(known, name) {
					base = histogram
				}
			}
			assert.True(t, slices.Contains(known, base) || slices.Contains(labels, name), "%s: there is no metric %s", where, name)
		}
	}

	var dashboard struct {
		Panels []struct {
			Type, Title, Description string
			Targets                  []struct{ Expr, LegendFormat string }
		}
	}
	content, err := os.ReadFile("../docs/dashboards/millrace.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, p := range dashboard.Panels {
		assert.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, target := range p.Targets {
			verify(p.Title, target.Expr)
		}
	}

	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	content, err = os.ReadFile("../docs/alerts.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(content, &rules))
	require.NotEmpty(t, rules.Groups)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			verify(r.Alert, r.Expr)
			assert.NotEmpty(t, r.Labels["severity"], r.Alert)
			assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
			assert.NotEmpty(t, r.Annotations["remedy"], r.Alert)
		}
	}
}
