package outbox_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// refusing is a broker that takes nothing, at first with an error that may be an outage, and then it rejects the first event of
// each key.
type refusing struct {
	recorder
	rejects bool
	tried   map[string]bool // keys
}

func (p *refusing) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(msgs))
	for i, m := range msgs {
		p.tried[transport.Key(m)] = true
		switch {
		case !p.rejects:
			errs[i] = errRefused
		case string(m.Payload) == "0":
			errs[i] = rejected(errRefused)
		default:
			errs[i] = transport.ErrNotSent
		}
	}
	return errs
}

func (p *refusing) reject() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejects = true
}

func (p *refusing) keys() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tried)
}

// A relay process is stopped beyond its leases while it holds events of each key, and another one sets the first of each aside.
// When it wakes it must ask before it sends: what it holds waits for a dead event.
func TestWokenRelayOvertakesNoKey(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	const keys, events = 64, 30 // more in each shard than go into a batch
	for name, test := range map[string]struct{ shared, left, alone bool }{
		"the other relay is there":                          {},
		"the other relay has left":                          {left: true},
		"they shared the shards, and the other has left":    {shared: true, left: true},
		"nobody took the shards, to see that it would send": {alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, d := newFixture(t), newDeliveries(t)
			outage := filepath.Join(t.TempDir(), "outage")
			require.NoError(t, os.WriteFile(outage, nil, 0o600))
			hold := func(want ...int) {
				t.Helper()
				eventually(t, "the relays hold their shards", func() bool { return assert.ObjectsAreEqual(want, f.holders()) })
			}
			other := &refusing{tried: map[string]bool{}}
			leave := func() {}
			join := func() { leave = f.run(f.newRelay(other, outbox.RelayConfig{})) }

			woken := d.relay(f.schema, whileThereIs+outage)
			defer kill(woken)
			hold(16)
			if test.shared {
				join()
				hold(8, 8)
			}
			f.publishSpread(topic, keys*events, keysOf("k", keys))
			eventually(t, "all keys are tried", func() bool {
				tried, err := os.ReadFile(outage)
				require.NoError(t, err)
				distinct := map[string]bool{}
				for _, k := range strings.Split(strings.TrimSpace(string(tried)), "\n") {
					distinct[k] = true
				}
				return len(distinct)+other.keys() == keys
			})
			stop(t, woken)
			require.NoError(t, os.Remove(outage))
			wake := sync.OnceFunc(func() { require.NoError(t, woken.Process.Signal(syscall.SIGCONT)) })
			defer wake()
			other.reject()
			if test.alone {
				eventually(t, "its leases have expired", func() bool { return len(f.holders()) == 0 })
				wake()
				eventually(t, "it sends what it holds", func() bool { return d.sofar().published == keys*events })
				return
			}
			if !test.shared {
				join()
			}
			hold(16)
			eventually(t, "the first event of each key is dead, the others are blocked", func() bool { return f.failedRows() == keys*events })
			if test.left {
				leave()
				wake()
			} else {
				wake()
				hold(8, 8)
				leave()
			}
			hold(16)
			for _, k := range keysOf("k", keys) {
				f.publish(k, strconv.Itoa(events))
			}
			f.publishSpread(topic, keys, keysOf("new ", keys))
			eventually(t, "the woken relay publishes what it may", func() bool { return len(d.all()) >= keys && f.rows() <= f.failedRows() })
			for _, one := range d.all() {
				assert.True(t, strings.HasPrefix(one.key, "new "), "event %s of key %s overtakes a dead one", one.payload, one.key)
			}
			assert.Equal(t, keys*(events+1), f.failedRows())

			retried, err := outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{}, outboxadmin.By{Actor: "a test"})
			require.NoError(t, err)
			assert.EqualValues(t, keys, retried)
			eventually(t, "all are published", func() bool { return f.rows() == 0 && d.sofar().published == keys+keys*(events+1) })
			assert.Zero(t, d.sofar().inversions)
		})
	}
}

func (f *fixture) failedRows() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.outbox_failed`).Scan(&n))
	return n
}

// stop returns when the process has stopped.
func stop(t *testing.T, process *exec.Cmd) {
	t.Helper()
	require.NoError(t, process.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
}
