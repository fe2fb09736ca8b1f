package framework_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport/memory"
)

// rolled is the role of a process that takes orders behind a load balancer.
const rolled = "rolled"

type rolledConfig struct {
	File, Schema, Topic string
	Linger              time.Duration
}

func playRolled(ctx context.Context, c rolledConfig, _ <-chan string) error {
	cfg, err := framework.Load(c.File, memory.Driver)
	if err != nil {
		return err
	}
	cfg.HTTP.Linger = &c.Linger        // whatever the environment says
	cfg.Outbox.Relay = framework.Apart // the events stay where they can be counted
	svc, err := patientNew(ctx, cfg)
	if err != nil {
		return err
	}
	placed := framework.Topic[int](c.Topic)
	svc.HTTP().HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err == nil {
			err = pgtx.Run(r.Context(), svc.Pool(), func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `insert into `+c.Schema+`.orders values ($1)`, id); err != nil {
					return err
				}
				return placed.Publish(ctx, r.PathValue("id"), id)
			})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	go func() {
		<-svc.Running()
		fmt.Printf("running at %s\n", svc.Address())
	}()
	return svc.RunUntilSignal(ctx)
}

// backend is a process behind the balancer.
type backend struct {
	process *role.Process
	address string
	ready   atomic.Bool
}

// fleet is processes of a service, and a load balancer before them: it asks each for /readyz, and sends requests to those that
// were ready when it asked last.
type fleet struct {
	*world
	c       rolledConfig
	client  *http.Client
	sent    atomic.Int64
	done    atomic.Int64
	mu      sync.Mutex
	all     []*backend
	lost    []error
	stopped chan struct{}
	working sync.WaitGroup
}

const (
	probing = 100 * time.Millisecond // how often the balancer asks
	between = 20 * time.Millisecond  // how long a client waits before its next order
)

// newFleet has processes that linger for so long.
func newFleet(t *testing.T, linger time.Duration) *fleet {
	w := newWorld(t, "memory")
	w.migrated()
	_, err := w.pool.Exec(t.Context(), `create table `+w.schema+`.orders (id int primary key)`)
	require.NoError(t, err)
	c := rolledConfig{File: w.file, Schema: w.schema, Topic: w.topic("placed"), Linger: linger}
	f := &fleet{world: w, c: c, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 10}, Timeout: wait}, stopped: make(chan struct{})}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

// add starts a process, and waits until the balancer sends requests to it.
func (f *fleet) add() {
	f.t.Helper()
	var said output
	p, err := role.Start(rolled, f.c, &said, &said)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		p.Kill()
		if f.t.Failed() {
			fmt.Fprintln(os.Stderr, said.text.String())
		}
	})
	running := regexp.MustCompile(`running at (\S+)\n`)
	b := &backend{process: p}
	require.Eventually(f.t, func() bool {
		said.mu.Lock()
		defer said.mu.Unlock()
		m := running.FindSubmatch(said.text.Bytes())
		if m != nil {
			b.address = string(m[1])
		}
		return m != nil
	}, 3*wait, 20*time.Millisecond, "a process that runs")
	f.working.Go(func() { f.probe(b) })
	f.mu.Lock()
	f.all = append(f.all, b)
	f.mu.Unlock()
	require.Eventually(f.t, b.ready.Load, 3*wait, 20*time.Millisecond, "a process that is ready")
}

// probe asks a process whether it is ready, until the process ends or the fleet is stopped.
func (f *fleet) probe(b *backend) {
	ticker := time.NewTicker(probing)
	defer ticker.Stop()
	for {
		select {
		case <-f.stopped:
			return
		case <-b.process.Ended():
			b.ready.Store(false)
			return
		case <-ticker.C:
		}
		b.ready.Store(f.asks(b))
	}
}

// asks reports whether a process says within a second that it is ready.
func (f *fleet) asks(b *backend) bool {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.address+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := f.client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// load sends orders until the fleet is stopped, each to the next process that is ready. It leaves the processors to processes
// that start and stop.
func (f *fleet) load() {
	ticker := time.NewTicker(between)
	defer ticker.Stop()
	for {
		select {
		case <-f.stopped:
			return
		case <-ticker.C:
		}
		f.mu.Lock()
		var ready []*backend
		for _, b := range f.all {
			if b.ready.Load() {
				ready = append(ready, b)
			}
		}
		f.mu.Unlock()
		if len(ready) == 0 { // the probes are late
			continue
		}
		n := f.sent.Add(1)
		if err := f.order(ready[int(n)%len(ready)], n); err != nil {
			f.mu.Lock()
			f.lost = append(f.lost, err)
			f.mu.Unlock()
		} else {
			f.done.Add(1)
		}
	}
}

// order sends one whose body is a stream, which the client cannot send again by itself.
func (f *fleet) order(b *backend, n int64) error {
	body := io.MultiReader(bytes.NewReader([]byte("order")))
	res, err := f.client.Post(fmt.Sprintf("http://%s/orders/%d", b.address, n), "text/plain", body) // the client has a timeout
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// roll replaces a process so many times under load, as a rolling deploy does, or until enough says so, and returns the requests
// that were lost.
func (f *fleet) roll(stops int, enough func(lost int) bool) []error {
	end := sync.OnceFunc(func() { close(f.stopped); f.working.Wait() })
	f.t.Cleanup(end)
	for range 3 {
		f.add()
	}
	for range 4 {
		f.working.Go(f.load)
	}
	var leaving []*backend
	for range stops {
		f.add()
		before := f.done.Load()
		require.Eventually(f.t, func() bool { return f.done.Load() >= before+20 }, wait, time.Millisecond, "orders")
		f.mu.Lock()
		lost, oldest := len(f.lost), f.all[len(leaving)]
		f.mu.Unlock()
		if enough(lost) {
			break
		}
		require.NoError(f.t, syscall.Kill(oldest.process.PID(), syscall.SIGTERM))
		leaving = append(leaving, oldest)
	}
	for _, b := range leaving {
		next(f.t, b.process.Ended())
		assert.NoError(f.t, b.process.Err())
	}
	end()
	return f.lost
}

// A rolling deploy behind a load balancer refuses no request and cuts none, and each that is answered has its effect.
func TestRollingDeploy(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newFleet(t, 10*time.Second) // a probe takes up to a second, and a busy machine is late
	lost := f.roll(devtest.Storm(30, 10), func(int) bool { return false })
	assert.Empty(t, lost)
	assert.Positive(t, f.done.Load())
	assert.EqualValues(t, f.done.Load(), f.get(`select count(*) from {s}.orders`))
	assert.EqualValues(t, f.done.Load(), f.get(`select count(*) from {s}.outbox`))
}

// A service that does not linger refuses what the balancer sends until it notices.
func TestRollingDeployControl(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newFleet(t, 0)
	assert.NotEmpty(t, f.roll(30, func(lost int) bool { return lost > 0 }))
}
