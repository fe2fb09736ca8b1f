package devstack

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/kafkaview"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

func TestFakes(t *testing.T) {
	scratch(t)
	stack := &Stack{hooks: hooks{skipInstalled: true}}
	require.NoError(t, stack.Add(t.Context(), PubSub, Kafka, Redis))
	for _, info := range stack.Services() {
		assert.False(t, info.Real)
		assert.Contains(t, info.Source, "in process")
		assert.True(t, strings.HasPrefix(info.Address, "127.0.0.1:"))
	}
	require.NoError(t, kafkaview.RoundTrip(t.Context(), stack.KafkaBrokers()))
	require.NoError(t, askRedis(t.Context(), stack.RedisAddr(), ""))
	require.NoError(t, stack.Stop())
	for _, info := range stack.Services() {
		assert.True(t, closed(info.Address))
	}
}

func TestRequireReal(t *testing.T) {
	scratch(t)
	start := func(require string) error {
		t.Setenv(requireVariable, require)
		stack := &Stack{hooks: hooks{skipInstalled: true}}
		defer stack.Stop() // asserted elsewhere
		return stack.Add(t.Context(), PubSub, Kafka, Redis)
	}
	assert.NoError(t, start("postgres"))
	assert.False(t, Required("pgbouncer"))
	assert.NoError(t, start("postgres, pgbouncer,mount"))
	assert.True(t, Required("pgbouncer"))
	assert.ErrorContains(t, start("postgres, kafka"), "scripts/kafka fetches it")
	assert.ErrorContains(t, start("redis"), "package is redis-server, or name a running one by MILLRACE_REDIS_ADDR")
	assert.ErrorContains(t, start("pubsub"), "google-cloud-cli-pubsub-emulator")
	t.Setenv(requireVariable, "kafka")
	assert.ErrorContains(t, (&Stack{hooks: hooks{skipInstalled: true}}).Add(t.Context(), Kafka3), "scripts/kafka fetches it")
	assert.ErrorContains(t, start("kafak"), `MILLRACE_REQUIRE_REAL: unknown service "kafak": want postgres, pubsub, kafka, kafka3 or redis, pgbouncer, chromium, debezium or mount`)
}

// A child of a program that runs a stack uses that stack.
func TestEnvironmentNamesServices(t *testing.T) {
	scratch(t)
	outer := &Stack{hooks: hooks{skipInstalled: true}}
	require.NoError(t, outer.Add(t.Context(), PubSub, Kafka, Redis))
	for _, line := range outer.Env() {
		key, value, _ := strings.Cut(line, "=")
		t.Setenv(key, value)
	}
	inner, err := Start(t.Context(), PubSub, Kafka, Redis)
	require.NoError(t, err)
	assert.Equal(t, outer.KafkaBrokers(), inner.KafkaBrokers())
	require.NoError(t, askPubSub(t.Context(), inner.PubSubHost()), "through a front of its own")
	for i, info := range inner.Services() {
		assert.False(t, info.Real)
		assert.Contains(t, info.Source, ", named by "+variable[info.Service])
		assert.Equal(t, outer.Services()[i].Address, info.Address)
	}
	require.NoError(t, inner.Stop())
	require.NoError(t, kafkaview.RoundTrip(t.Context(), outer.KafkaBrokers()), "it was not ours to stop")
	require.NoError(t, outer.Stop())

	_, err = Start(t.Context(), Kafka)
	assert.ErrorContains(t, err, "MILLRACE_KAFKA_BROKERS", "a named service that is gone is an error, not a reason for another source")
	_, err = Start(t.Context(), Redis)
	assert.ErrorContains(t, err, "MILLRACE_REDIS_ADDR")
	t.Setenv(variable[Redis], "redis://127.0.0.1:6379")
	_, err = Start(t.Context(), Redis)
	assert.ErrorContains(t, err, `MILLRACE_REDIS_ADDR is "redis://127.0.0.1:6379": want host:port`)
}

// A service that was handed on is asked what it is: a fake does not become real on the way.
func TestEnvironmentSaysWhatIsReal(t *testing.T) {
	for name, skipInstalled := range map[string]bool{"fakes": true, "what this machine has": false} {
		t.Run(name, func(t *testing.T) {
			scratch(t)
			outer := &Stack{hooks: hooks{skipInstalled: skipInstalled}}
			require.NoError(t, outer.Add(t.Context(), PubSub, Kafka, Redis))
			t.Cleanup(func() { assert.NoError(t, outer.Stop()) })
			for _, line := range outer.Env() {
				key, value, _ := strings.Cut(line, "=")
				t.Setenv(key, value)
			}
			inner, err := Start(t.Context(), PubSub, Kafka, Redis)
			require.NoError(t, err)
			for i, info := range inner.Services() {
				assert.Equal(t, outer.Services()[i].Real, info.Real, "%+v", info)
			}
			require.NoError(t, inner.Stop())

			for _, info := range outer.Services() {
				t.Setenv(requireVariable, string(info.Service))
				inner, err := Start(t.Context(), info.Service)
				if info.Real {
					require.NoError(t, err)
					require.NoError(t, inner.Stop())
				} else {
					assert.ErrorContains(t, err, "MILLRACE_REQUIRE_REAL asks for a real one, and this is "+calls[info.Service].fake+", named by "+variable[info.Service])
				}
			}
		})
	}
}

func TestEnvironmentNamesPostgres(t *testing.T) {
	scratch(t)
	outer, err := Start(t.Context(), Postgres)
	require.NoError(t, err)
	t.Setenv(variable[Postgres], outer.PostgresDSN())
	inner, err := Start(t.Context(), Postgres)
	require.NoError(t, err)
	assert.Equal(t, outer.PostgresDSN(), inner.PostgresDSN())
	info := inner.Services()[0]
	assert.Equal(t, Info{Service: Postgres, Source: "PostgreSQL, named by MILLRACE_POSTGRES_DSN", Address: outer.Services()[0].Address, Real: true, Took: info.Took}, info)
	require.NoError(t, inner.Stop())
	require.NoError(t, askPostgres(t.Context(), outer.PostgresDSN()))
	require.NoError(t, outer.Stop())

	t.Setenv(variable[Postgres], "postgres://%zz")
	_, err = Start(t.Context(), Postgres)
	assert.ErrorContains(t, err, variable[Postgres])
}

// A service that ends at its start fails the start at once, with its last words.
func TestDyingService(t *testing.T) {
	dir := scratch(t)
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	write(t, filepath.Join(bin, "initdb"), "#!/bin/sh\nexit 0\n")
	write(t, filepath.Join(bin, "postgres"), "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'postgres (PostgreSQL) 99.1'; exit; fi\necho FATAL: out of ink >&2; exit 5\n")
	stack := &Stack{hooks: hooks{postgresBin: bin}}
	err := stack.Add(t.Context(), Postgres)
	require.ErrorContains(t, err, "FATAL: out of ink")
	assert.ErrorContains(t, err, "exit status 5")
	require.NoError(t, stack.Stop())
	require.NoError(t, os.RemoveAll(bin))
}

// Between the choice of a port and its use another process may take it.
func TestPortTaken(t *testing.T) {
	for _, service := range []Service{Postgres, PubSub, Kafka, Redis} {
		t.Run(string(service), func(t *testing.T) {
			scratch(t)
			taken, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(t, err)
			defer taken.Close()
			calls := 0
			stack := &Stack{hooks: hooks{freePort: func() (int, error) {
				if calls++; calls == 1 {
					return taken.Addr().(*net.TCPAddr).Port, nil
				}
				return machine.FreePort()
			}}}
			require.NoError(t, stack.Add(t.Context(), service))
			info := stack.Services()[0]
			assert.NotEqual(t, taken.Addr().String(), info.Address)
			if info.Real {
				assert.Greater(t, calls, 1, "the taken port was tried")
			}
			require.NoError(t, stack.Stop())
		})
	}
}

func write(t *testing.T, path, script string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
}
