package framework_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// signalled is the role of a process that runs a service until a signal.
const signalled = "signalled"

type signalledConfig struct{ File, PubSub, Schema, Topic, Consumer string }

// playSignalled handles events that each wait for a word.
func playSignalled(ctx context.Context, c signalledConfig, told <-chan string) error {
	driver := pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(c.PubSub)})
	cfg, err := framework.Load(c.File, driver)
	if err != nil {
		return err
	}
	svc, err := patientNew(ctx, cfg)
	if err != nil {
		return err
	}
	err = handle(svc, c.Consumer, c.Topic, func(ctx context.Context, n int) error {
		tx, _ := pgtx.From(ctx)
		if _, err := tx.Exec(ctx, `insert into `+c.Schema+`.notifications values ($1, $2)`, n, framework.EventFrom(ctx).ID); err != nil {
			return err
		}
		fmt.Println("in hand")
		<-told
		return nil
	})
	if err != nil {
		return err
	}
	go func() {
		<-svc.Running()
		fmt.Println("running")
	}()
	return svc.RunUntilSignal(ctx)
}

// output is what a process has said.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) has(what string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text.Bytes(), []byte(what))
}

func (w *world) play(c signalledConfig) (*role.Process, *output) {
	var said output
	p, err := role.Start(signalled, c, &said, &said)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		p.Kill()
		if w.t.Failed() {
			fmt.Fprintln(os.Stderr, said.text.String())
		}
	})
	w.eventually("a process that runs", func() bool { return said.has("running") })
	return p, &said
}

// stopLog collects the messages about a stop. It gives a wrong order the time to show.
type stopLog struct {
	mu       sync.Mutex
	messages []string
	stopped  chan struct{}
}

func (*stopLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *stopLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *stopLog) WithGroup(string) slog.Handler          { return l }
func (l *stopLog) Handle(_ context.Context, r slog.Record) error {
	switch {
	case strings.HasPrefix(r.Message, "service stops"):
		select {
		case <-l.stopped:
		case <-time.After(200 * time.Millisecond):
		}
	case r.Message == "service has stopped":
		close(l.stopped)
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, r.Message)
	return nil
}

// The log says that the service stops before it says that the service has stopped.
func TestLogOfAStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	log := &stopLog{stopped: make(chan struct{})}
	cfg := w.config()
	cfg.Log.Handler = log
	svc := w.service(cfg)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- svc.RunUntilSignal(ctx) }()
	<-svc.Running()
	stop()
	require.NoError(t, next(t, ended))
	log.mu.Lock()
	defer log.mu.Unlock()
	assert.Equal(t, []string{"service stops; another signal ends it at once", "service has stopped"}, log.messages)
}

// A signal in the middle of a handler lets it finish; a second one ends the process, and the event comes back. Its effect
// happens once in either case.
func TestSignalInTheMiddleOfAHandler(t *testing.T) {
	t.Parallel()
	for name, force := range map[string]bool{"drained": false, "forced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pubsub")
			c := signalledConfig{w.file, devtest.Start(t, devstack.PubSub).PubSubHost(), w.schema, w.topic("numbers"), w.name("count")}
			first, said := w.play(c)

			sender := w.service(w.config())
			w.start(sender)
			publish := func(n int) {
				require.NoError(t, sender.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
					return framework.Topic[int](c.Topic).Publish(ctx, "", n)
				}))
			}
			publish(1)
			w.eventually("a handler at work", func() bool { return said.has("in hand") })
			require.NoError(t, syscall.Kill(first.PID(), syscall.SIGTERM))
			w.eventually("a service that stops", func() bool { return said.has("service stops") })
			want := 1
			if force {
				want = 0
				require.NoError(t, syscall.Kill(first.PID(), syscall.SIGTERM))
			} else {
				first.Tell("go on")
			}
			next(t, first.Ended())
			assert.Equal(t, force, first.Err() != nil, "%v", first.Err())
			assert.Equal(t, want, w.get(`select count(*) from {s}.notifications`))

			second, _ := w.play(c)
			second.Tell("go on")
			second.Tell("go on")
			publish(2)
			w.eventually("both events", func() bool { return w.get(`select count(distinct event_id) from {s}.notifications`) == 2 })
			require.NoError(t, syscall.Kill(second.PID(), syscall.SIGTERM))
			next(t, second.Ended())
			require.NoError(t, second.Err())
			assert.Equal(t, 2, w.get(`select count(*) from {s}.notifications`), "one effect each")
		})
	}
}
