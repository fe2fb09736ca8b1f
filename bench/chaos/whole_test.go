//go:build chaos

package chaos

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/notrun"
)

// These are whole runs, which take minutes and both processors:
//
//	go test -C bench -tags chaos ./chaos -run 'PromisesHold|Sabotage'

// run is Run in a test, which shows what was logged when it has failed. A run by itself takes both processors.
func run(t *testing.T, cfg Config, without string) (r *Result, caught bool) {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "processes.log"))
	require.NoError(t, err)
	defer logs.Close()
	var out bytes.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
			t.Log(excerpt(logs.Name()))
		}
	})
	cfg.Seed, cfg.Out, cfg.Logs = seed, &out, logs
	if without == "" {
		r, err = Run(t.Context(), cfg)
	} else {
		r, caught, err = Sabotaged(t.Context(), cfg, without)
	}
	if errors.Is(err, devstack.ErrAbsent) && !devstack.Required(cfg.Broker) {
		notrun.Skip(t, devstack.Need(cfg.Broker), err)
	}
	require.NoError(t, err)
	require.NoError(t, r.Write(&out))
	return r, caught
}

// excerpt is what processes said when they ended, and the end of the log.
func excerpt(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	var said []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, " level=") && len(said) < 500 {
			said = append(said, line)
		}
	}
	return strings.Join(said, "") + "…\n" + string(text[max(0, len(text)-20_000):])
}

func TestPromisesHoldUnderEveryKindOfFault(t *testing.T) {
	for _, broker := range []string{Kafka, PubSub} {
		t.Run(broker, func(t *testing.T) {
			r, _ := run(t, Config{Broker: broker, Duration: time.Minute}, "")
			assert.Empty(t, r.Findings)
			assert.Empty(t, r.Flaws())
			assert.True(t, r.Good())
			assert.Equal(t, r.Counts.Sent, r.Counts.Charges)
			for _, l := range r.table() {
				assert.Positive(t, l.Faults-l.Failed, l.Kind)
			}
		})
	}
}

// The auditor sees what a missing mechanism lets through. These are caught in any run: clients repeat every twelfth request
// whatever comes, relays that are told to publish at least one batch twice, and the provider keeps at least one answer
// back. The others of -sabotage need a fault at the right moment.
func TestSabotageIsCaught(t *testing.T) {
	for name, broker := range map[string]string{"key": PubSub, "claim": Kafka, "ledger": PubSub} {
		t.Run(name, func(t *testing.T) {
			r, caught := run(t, Config{Broker: broker}, name)
			assert.True(t, caught, r.Summary())
			assert.Positive(t, r.Count(doubled))
			assert.False(t, r.Good())
		})
	}
}
