package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/transport"
)

// fleetProcess is the role of a process that runs a fleet.
const fleetProcess = "fleet"

type processConfig struct{ DSNs []string }

// lineBroker prints what it gets, one line for each event. Lines of several processes are told apart by their pipes.
type lineBroker struct{ mu sync.Mutex }

func (b *lineBroker) Publish(_ string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		line, err := json.Marshal([2]string{transport.Key(m), string(m.Payload)})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(os.Stdout, string(line)); err != nil {
			return err
		}
	}
	return nil
}

func (b *lineBroker) Close() error { return nil }

func playFleet(ctx context.Context, cfg processConfig, _ <-chan string) error {
	var all []fleet.Database
	for i, dsn := range cfg.DSNs {
		all = append(all, fleet.Database{Name: fmt.Sprint(i), DSN: dsn})
	}
	f, err := fleet.New(fleet.Fixed(all...), &lineBroker{}, fleet.Config{Relay: outbox.RelayConfig{LeaseTTL: 2 * time.Second}})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

// lines collects what several processes have published, in the order of its arrival.
type lines struct {
	mu    sync.Mutex
	byKey map[string][]string
}

// of returns a writer for one process.
func (l *lines) of() *lineWriter { return &lineWriter{lines: l} }

type lineWriter struct {
	lines *lines
	rest  string
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	all := strings.Split(w.rest+string(b), "\n")
	w.rest = all[len(all)-1]
	for _, line := range all[:len(all)-1] {
		var event [2]string
		if json.Unmarshal([]byte(line), &event) == nil {
			w.lines.byKey[event[0]] = append(w.lines.byKey[event[0]], event[1])
		}
	}
	return len(b), nil
}

// first returns the events of a key by their first delivery.
func (l *lines) first(key string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.byKey[key] {
		if !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found
}

// Two processes run one fleet and are killed in turn while events are written. None is lost, and those of a key keep their order.
func TestFleetLosesNothingWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	all := databases(t, 6)
	var dsns []string
	for _, db := range all {
		dsns = append(dsns, db.DSN)
	}
	published := &lines{byKey: map[string][]string{}}
	begin := func() *role.Process {
		p, err := role.Start(fleetProcess, processConfig{DSNs: dsns}, published.of(), t.Output())
		require.NoError(t, err)
		return p
	}
	processes := []*role.Process{begin(), begin()}
	defer func() {
		for _, p := range processes {
			p.Kill()
		}
	}()
	written := map[string][]string{}
	for round := range 4 {
		for n := range 5 {
			for _, db := range all {
				event := fmt.Sprintf("%s-%d-%d", db.Name, round, n)
				write(t, db, db.Name, event)
				written[db.Name] = append(written[db.Name], event)
			}
		}
		busy := all[round]
		eventually(t, "an event of the round", func() bool {
			return slices.Contains(published.first(busy.Name), fmt.Sprintf("%s-%d-0", busy.Name, round))
		})
		processes[round%2].Kill()
		processes[round%2] = begin()
	}
	for _, db := range all {
		require.Eventually(t, func() bool { return len(published.first(db.Name)) == len(written[db.Name]) }, 2*time.Minute, 50*time.Millisecond, db.Name)
		require.Equal(t, written[db.Name], published.first(db.Name))
	}
}
