package framework_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const secret = "hunter2"

func TestSecretsAreShownNowhere(t *testing.T) {
	bare(t)
	cfg, err := framework.Load(file(t, `
service: labour
broker: kafka
postgres: {dsn: "postgres://labour:hunter2@db/labour"}
kafka: {brokers: ["localhost:1"], sasl: {mechanism: SCRAM-SHA-512, user: labour, password: hunter2}}
`), drivers...)
	require.NoError(t, err)
	require.Contains(t, cfg.Postgres.DSN, secret)
	_, s, err := cfg.Settings()
	require.NoError(t, err)

	shown := map[string]string{}
	sasl := kafka.SASL{User: "labour", Password: secret}
	for name, v := range map[string]any{
		"config": cfg, "config's address": &cfg, "postgres": cfg.Postgres, "settings": s, "sasl": sasl, "kafka": kafka.Config{SASL: sasl},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			shown[name+verb] = fmt.Sprintf(verb, v)
		}
		var logged bytes.Buffer
		slog.New(slog.NewTextHandler(&logged, nil)).Info("started", slog.Any("with", v))
		slog.New(slog.NewJSONHandler(&logged, nil)).Info("started", slog.Any("with", v))
		shown[name+" in a log"] = logged.String()
		b, _ := json.Marshal(v) // kafka.Config has functions
		shown[name+" as JSON"] = string(b)
	}
	b, err := cfg.YAML()
	require.NoError(t, err)
	shown["YAML"] = string(b)
	assert.Contains(t, shown["YAML"], "password: (hidden)")
	assert.Contains(t, shown["YAML"], "dsn: (hidden)")
	b, err = cfg.MarshalJSON()
	require.NoError(t, err)
	shown["JSON"] = string(b)
	for where, text := range shown {
		assert.NotContains(t, text, secret, where)
	}
	_, err = framework.Load(file(t, shown["YAML"]), drivers...)
	assert.ErrorContains(t, err, "is (hidden), which is shown in place of a secret")
}

func TestErrorsShowNoSecret(t *testing.T) {
	bare(t)
	for _, content := range []string{
		"postgres: {dsn: 'postgres://labour:hunter2@db:port/labour'}",
		"postgres: {dsn: 'host=db password=hunter2 port=x'}",
		"postgres: {dsn: [hunter2]}",
		"postgres: hunter2",
		"postgres: [hunter2]",
		"kafka: {sasl: {password: *hunter2}}",
		"kafka: {sasl: {password: {hunter2: hunter2}}}",
		"kafka: {sasl: {password: hunter2}}",
		"kafka: {brokers: ['kafka.example:9092'], sasl: {mechanism: PLAIN, user: x, password: hunter2}}",
		"kafka: {sasl: hunter2}",
		"kafka: {sasl: {password: !hunter2 x}}",
		"kafka: {sasl: {password: !<hunter2 x}}",
		"kafka: {sasl: {password: &hunter2&}}",
		"kafka: {sasl: {password: &a hunter2 *a}}",
		"kafka: {sasl: {password: @hunter2}}",
		"kafka: {sasl: {password: 'hunter2}}",
		"kafka: {sasl: {password: \"hunter2\\q\"}}",
		"kafka: {sasl: {password: hunter2, hunter2}}",
		"kafka:\n  sasl:\n    password: |hunter2\n",
		"kafka:\n  sasl:\n    password: >hunter2\n",
		"kafka:\n  sasl:\n    password: hunter2: x\n",
		"kafka:\n  sasl:\n    password: [hunter2\n",
		"kafka:\n  sasl:\n    password: %hunter2\n",
		"kafka:\n  sasl:\n    password: `hunter2\n",
		"postgres: {dsn: 'postgres://labour:hunter2/x@db/labour'}",
		"postgres: {dsn: 'postgres://labour:hunter2%@db/labour'}",
		"postgres: {dsn: 'postgres://labour:hunter2 @db/labour'}",
		"postgres: {dsn: 'postgres://db/labour?password=hunter2&sslmode=odd'}",
		"postgres: {dsn: 'host=db password=''hunter2 port=5432'}",
		"postgres: {dsn: 'labour:hunter2@db'}",
	} {
		_, err := framework.Load(file(t, "service: labour\nbroker: kafka\n"+content), drivers...)
		require.Error(t, err, content)
		assert.NotContains(t, err.Error(), secret, content)
	}
}

// What is printed is what is loaded again.
func TestPrintedConfigurationIsTheSame(t *testing.T) {
	bare(t)
	content, err := os.ReadFile("testdata/full.yaml")
	require.NoError(t, err)
	full := string(content)
	for _, brokers := range [][2]string{{"kafka"}, {"pubsub"}, {"memory"}, {"pubsub", "kafka"}} {
		t.Setenv("MILLRACE_BROKER", brokers[0])
		t.Setenv("MILLRACE_MIGRATION_TO", brokers[1])
		t.Setenv("MILLRACE_PUBSUB_PROJECT_ID", "labour")
		if brokers[1] != "" {
			t.Setenv("MILLRACE_KAFKA_DELIVERY", "at_least_once") // a migration needs it, and consumers that pull
			full = regexp.MustCompile(`push: \{.*?\}`).ReplaceAllString(full, "prefetch: 7")
		}
		cfg, err := framework.Load(file(t, full), drivers...)
		require.NoError(t, err)
		first, err := cfg.YAML()
		require.NoError(t, err)
		again, err := framework.Load(file(t, string(first)), drivers...)
		require.NoError(t, err, string(first))
		second, err := again.YAML()
		require.NoError(t, err)
		assert.Equal(t, string(first), string(second))
		if brokers[0] == "kafka" {
			golden(t, "testdata/full.golden.yaml", string(first))
		}
	}
}

// Any values, whether or not they are valid, are the same after they were printed and read.
func TestAnyValuesSurvivePrinting(t *testing.T) {
	t.Parallel()
	targets := []reflect.Type{reflect.TypeFor[framework.Config]()}
	for _, d := range drivers {
		targets = append(targets, reflect.TypeOf(d.Settings()).Elem())
	}
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.SampledFrom(targets).Draw(t, "of")
		v, read := reflect.New(of), reflect.New(of)
		fill(t, v.Elem())
		printed, err := yaml.Marshal(settings.Node(v.Interface()))
		require.NoError(t, err)
		var document yaml.Node
		require.NoError(t, yaml.Unmarshal(printed, &document), "%s", printed)
		r := settings.NewReader()
		r.Decode(document.Content[0], "", read.Interface())
		require.Empty(t, r.Problems, "%s", printed)
		require.True(t, reflect.DeepEqual(v.Interface(), read.Interface()), "%s", printed)
	})
}

// fill sets everything that can be set, apart from secrets.
func fill(t *rapid.T, v reflect.Value) {
	for _, f := range settings.Fields(v.Type()) {
		fv := v.FieldByIndex(f.Index)
		if f.Secret {
			continue
		}
		if fv.Kind() == reflect.Pointer {
			if fv.Type().Elem().Name() == "Regexp" || rapid.Bool().Draw(t, "nil") {
				continue
			}
			fv.Set(reflect.New(fv.Type().Elem()))
			fv = fv.Elem()
		}
		switch f.Kind {
		case settings.Section:
			fill(t, fv)
		case settings.Named:
			for _, name := range rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "names") {
				entry := reflect.New(fv.Type().Elem()).Elem()
				fill(t, entry)
				if fv.IsNil() {
					fv.Set(reflect.MakeMap(fv.Type()))
				}
				fv.SetMapIndex(reflect.ValueOf(name), entry)
			}
		case settings.Listed:
			fv.Set(reflect.MakeSlice(fv.Type(), 2, 2))
			for i := range fv.Len() {
				fill(t, fv.Index(i))
			}
		case settings.List:
			switch fv.Interface().(type) {
			case []int:
				fv.Set(reflect.ValueOf(rapid.SliceOfN(rapid.Int(), 1, 3).Draw(t, "list")))
			case []string:
				fv.Set(reflect.ValueOf(rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "list")))
			default:
				fv.Set(reflect.MakeSlice(fv.Type(), 1, 1))
				fv.Index(0).SetInt(rapid.Int64Range(0, 1).Draw(t, "enum"))
			}
		case settings.Duration:
			fv.SetInt(int64(time.Duration(rapid.Int64().Draw(t, "duration"))))
		case settings.Text:
			switch to := fv.Addr().Interface().(type) {
			case *transport.EventIDSource:
				*to = rapid.SampledFrom([]transport.EventIDSource{{}, transport.EventIDFromHeader(" a:b"), transport.EventIDFromJSON("a.b"), transport.EventIDFromOffset()}).Draw(t, "source")
			case *kafka.TopicSettings:
				*to = rapid.SampledFrom([]kafka.TopicSettings{nil, {"retention.ms": ""}, {"cleanup.policy": "compact,delete", "retention.ms": "1"}}).Draw(t, "settings")
			case *pubsub.Labels:
				*to = rapid.SampledFrom([]pubsub.Labels{nil, {"a": ""}, {"a": "1", "b-c": "d_e"}}).Draw(t, "labels")
			default:
				fv.SetInt(rapid.Int64Range(0, 1).Draw(t, "enum"))
			}
		case settings.Scalar, settings.Unsettable:
			scalar(t, fv)
		}
	}
}

func scalar(t *rapid.T, v reflect.Value) {
	switch {
	case v.Kind() == reflect.String:
		v.SetString(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"null", "~", "yes", "1", "*a", "&a", "- b", "a: b", "# c", "a\nb\n"})).Draw(t, "text"))
	case v.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	default:
		v.SetInt(rapid.Int64Range(-1<<(v.Type().Bits()-1), 1<<(v.Type().Bits()-1)-1).Draw(t, "int"))
	}
}

func FuzzLoad(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	require.NoError(f, err)
	f.Add(full, "MILLRACE_HANDLERS={a: {concurrency: 1}}")
	f.Add([]byte("service: a\nbroker: memory\n"), "MILLRACE_KAFKA_BROKERS=a,b")
	f.Add([]byte("a: &a [*a]\nhandlers: &h {x: *h}\n? {a: b}\n: c"), "MILLRACE_HANDLERS=[")
	f.Fuzz(func(t *testing.T, content []byte, variable string) {
		cfg, err := framework.Parse("millrace.yaml", content, []string{variable}, []transport.Driver{memory.Driver, kafka.Driver})
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		first, err := cfg.YAML()
		require.NoError(t, err)
		require.NotEmpty(t, first)
	})
}
