package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// hold is a folder by which a test holds back transactions of a relay process: those that have begun before the file "go" is there.
type hold string

// note tells the test that something has happened to a transaction.
func (h hold) note(what string) error {
	f, err := os.CreateTemp(string(h), what)
	if err != nil {
		return err
	}
	return f.Close()
}

// of counts what was noted.
func (h hold) of(what string) int {
	files, err := filepath.Glob(filepath.Join(string(h), what+"*"))
	if err != nil {
		panic(err) // the pattern is wrong
	}
	return len(files)
}

// heldBack are transactions that are held back when the relay has seen for the last time that it has the lease. The end of their context comes too
// late, as for requests that are under way.
type heldBack struct {
	careful
	hold hold
}

func (h heldBack) within(ctx context.Context, msgs []*message.Message, publish func(context.Context) []error) []error {
	for _, m := range msgs {
		m.SetContext(context.WithoutCancel(m.Context()))
	}
	if err := h.hold.note("begun"); err != nil {
		return slices.Repeat([]error{err}, len(msgs))
	}
	for h.hold.of("go") == 0 {
		<-time.After(10 * time.Millisecond)
	}
	results := publish(context.WithoutCancel(ctx))
	fmt.Fprintln(os.Stderr, "a transaction that was held back:", errors.Join(results...))
	if err := h.hold.note("ended"); err != nil {
		return slices.Repeat([]error{err}, len(msgs))
	}
	return results
}

func (h heldBack) Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error {
	return h.within(ctx, msgs, func(ctx context.Context) []error { return h.careful.Publish(ctx, topic, msgs, note) })
}

func (h heldBack) PublishTo(ctx context.Context, topics []string, msgs []*message.Message, note []byte) []error {
	return h.within(ctx, msgs, func(ctx context.Context) []error { return h.careful.PublishTo(ctx, topics, msgs, note) })
}

// A relay is stopped between its last look at the lease and its transaction, and goes on when another one has published its events. Kafka refuses the
// transaction. In the control each relay has transactional IDs of its own, so nobody ends what the other has begun, and events come twice.
func TestStoppedRelayIsFenced(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, rule := range map[string]string{"fenced": "", "not fenced": without + unfenced} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, h := newOnceFixture(t), hold(t.TempDir())
			first := f.start(f.option(outbox.Transactional) + held + string(h) + rule)
			f.add(5 * onceKeys)
			eventually(t, "transactions are held back", func() bool { return h.of("begun") > 0 })
			require.NoError(t, first.Process.Signal(syscall.SIGSTOP))
			f.start(f.option(outbox.Transactional) + rule)
			f.left(0)
			require.NoError(t, h.note("go"))
			begun := h.of("begun")
			require.NoError(t, first.Process.Signal(syscall.SIGCONT))
			eventually(t, "the transactions have ended", func() bool { return h.of("ended") >= begun })
			v := f.read()
			if rule != "" {
				assert.Positive(t, v.twice, "without the fence nothing went wrong")
				v.twice = 0
			}
			assert.Equal(t, onceVerdict{}, v)
		})
	}
}
