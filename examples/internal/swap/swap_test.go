package swap

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

var drivers = []transport.Driver{
	pubsub.NewDriver(pubsub.Config{ProjectID: "p"}), kafka.NewDriver(kafka.Config{Brokers: []string{"127.0.0.1:9092"}}), memory.Driver,
}

// The examples run on each broker with the configuration that lies beside them, but for one line.
func TestOneLineOfTheExamples(t *testing.T) {
	t.Setenv("MILLRACE_POSTGRES_DSN", "postgres://localhost/x")
	for _, example := range []string{"quickstart", "bookings"} {
		yaml, err := os.ReadFile("../../" + example + "/millrace.yaml")
		require.NoError(t, err)
		for _, name := range []string{"pubsub", "kafka", "memory"} {
			changed, err := Line(string(yaml), name)
			require.NoError(t, err)
			other := strings.Split(changed, "\n")
			var differ []string
			for i, line := range strings.Split(string(yaml), "\n") {
				if other[i] != line {
					differ = append(differ, other[i])
				}
			}
			if name == "pubsub" {
				assert.Empty(t, differ)
			} else if assert.Len(t, differ, 1) {
				assert.Contains(t, differ[0], "broker: "+name)
			}
			assert.Equal(t, name, Named(changed))
			again, err := Line(changed, "pubsub")
			require.NoError(t, err)
			assert.Equal(t, string(yaml), again)
			cfg, err := Broker(string(yaml), name, drivers...)
			require.NoError(t, err)
			driver, _, err := cfg.Settings()
			require.NoError(t, err)
			assert.Equal(t, name, driver.Name)
		}
	}
}

// What the environment says goes before the file, so a run on the wrong broker would look like one on the right.
func TestBrokerOfTheEnvironment(t *testing.T) {
	t.Setenv("MILLRACE_BROKER", "memory")
	_, err := Broker("service: s\nbroker: pubsub\n", "kafka", drivers...)
	require.ErrorContains(t, err, "MILLRACE_BROKER in the environment says memory, and the command line kafka")
	_, err = Broker("service: s\n", "kafka", drivers...)
	require.ErrorContains(t, err, "has no line")
}
