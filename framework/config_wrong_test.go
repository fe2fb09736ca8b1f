package framework_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
)

// Each of testdata/wrong is refused with what its golden file says: place, field, value and remedy.
func TestWrongConfigurations(t *testing.T) {
	place := regexp.MustCompile(`^(testdata/wrong/\w+\.yaml(:\d+)?|\$MILLRACE_\w+): `)
	remedy := regexp.MustCompile(`want |did you mean |set TLS`)
	env := regexp.MustCompile(`(?m)^# env: (\w+)=(.*)$`)
	files, err := filepath.Glob("testdata/wrong/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 15)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			bare(t)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range env.FindAllSubmatch(content, -1) {
				t.Setenv(string(m[1]), string(m[2]))
			}
			_, err = framework.Load(path, drivers...)
			var wrong *framework.ConfigError
			require.ErrorAs(t, err, &wrong)
			golden(t, strings.TrimSuffix(path, ".yaml")+".txt", err.Error()+"\n")
			assert.NotContains(t, err.Error(), "hunter2")
			for _, problem := range wrong.Problems {
				assert.Regexp(t, place, problem)
				if !strings.Contains(problem, "is no YAML: ") {
					assert.Regexp(t, remedy, problem)
				}
			}
		})
	}
}

func TestFileThatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := framework.Load("nowhere.yaml")
	assert.ErrorContains(t, err, "there is no configuration file nowhere.yaml: create it, or name another one; an empty path names none")
}

// Whoever has named no database has perhaps forgotten what "millrace dev" printed.
func TestNoDatabaseIsNamed(t *testing.T) {
	bare(t)
	t.Setenv("PGHOST", "127.0.0.1")
	t.Setenv("PGPORT", "1")
	cfg := framework.Config{Service: "labour", Drivers: drivers, Broker: "memory", HTTP: framework.HTTP{Address: "127.0.0.1:0"}}
	_, err := framework.New(t.Context(), cfg)
	require.ErrorContains(t, err, "connect to PostgreSQL at 127.0.0.1:1: ")
	assert.ErrorContains(t, err, `If "millrace dev" runs in another terminal, run here the "export" lines that it printed there.`)
}

// LoadEnv's environment does not reach pgx, which reads the process's.
func TestPGVariablesAreThoseOfTheProcess(t *testing.T) {
	bare(t)
	t.Setenv("PGHOST", "127.0.0.1")
	t.Setenv("PGPORT", "1")
	cfg, err := framework.LoadEnv("", []string{"MILLRACE_SERVICE=labour", "MILLRACE_BROKER=memory", "MILLRACE_HTTP_ADDRESS=127.0.0.1:0", "PGHOST=127.0.0.2", "PGPORT=2"}, drivers...)
	require.NoError(t, err)
	_, err = framework.New(t.Context(), cfg)
	require.ErrorContains(t, err, "connect to PostgreSQL at 127.0.0.1:1: ")
	cfg, err = framework.LoadEnv("", []string{"MILLRACE_SERVICE=labour", "MILLRACE_BROKER=memory", "MILLRACE_HTTP_ADDRESS=127.0.0.1:0", "DATABASE_URL=host=127.0.0.2 port=2"}, drivers...)
	require.NoError(t, err)
	_, err = framework.New(t.Context(), cfg)
	require.ErrorContains(t, err, "connect to PostgreSQL at 127.0.0.2:2: ")
}

// A driver that is not there may have its variables and its section, but not be the broker's.
func TestDriverThatIsNotThere(t *testing.T) {
	bare(t)
	t.Setenv("MILLRACE_KAFKA_BROKERZ", "x")
	cfg, err := framework.Load(file(t, "service: a\nbroker: pubsub\nkafka: {brokerz: [x]}\n"), drivers[2])
	assert.ErrorContains(t, err, `millrace.yaml:2: broker is "pubsub", but the service has a driver of memory only: pass the driver of pubsub to framework.Open or in Config.Drivers`)
	_, _, err = cfg.Settings()
	assert.ErrorContains(t, err, `broker is "pubsub"`)
}

// bare takes away what the surroundings of the test say.
func bare(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "MILLRACE_") || strings.HasPrefix(name, "PUBSUB_") || name == "GOOGLE_CLOUD_PROJECT" || name == "DATABASE_URL" || strings.HasPrefix(name, "PG") {
			t.Setenv(name, "")
		}
	}
}
