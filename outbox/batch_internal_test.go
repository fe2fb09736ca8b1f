package outbox

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// publishing is a publisher of single messages that is a function.
type publishing func(m *message.Message) error

func (p publishing) Publish(_ string, msgs ...*message.Message) error { return p(msgs[0]) }
func (publishing) Close() error                                       { return nil }

// sends returns what a relay with the publisher answers for events 0, 1, …, which have no key.
func sends(t *testing.T, p publishing, events int, deadline time.Time) []error {
	t.Helper()
	return sendsLogged(t, p, events, deadline, t.Output())
}

func sendsLogged(t *testing.T, p publishing, events int, deadline time.Time, log io.Writer) []error {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "")
	require.NoError(t, err)
	defer pool.Close()
	r, err := NewRelay(pool, p, RelayConfig{Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	a := step.Publish{To: "t", Deadline: deadline}
	for i := range events {
		a.Rows = append(a.Rows, &step.Row{EventID: string(rune('0' + i)), Headers: []byte(`{"h":"v"}`), Payload: []byte("p")})
	}
	return r.send(context.Background(), a, new(sync.Once))
}

// A relay that is suspended while it sends one message after another sent the rest when it woke up, although another relay had the shard.
func TestRelaySendsNoMessageAfterItsDeadline(t *testing.T) {
	t.Parallel()
	for name, panics := range map[string]bool{"in a batch": false, "after a panic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadline := time.Now().Add(200 * time.Millisecond)
			sent := 0
			results := sends(t, func(*message.Message) error {
				if sent++; sent == 1 && panics {
					panic("once")
				}
				<-time.After(time.Until(deadline)) // suspended
				return nil
			}, 3, deadline)
			assert.Equal(t, []error{nil, step.ErrLeaseOver, step.ErrLeaseOver}, results)
		})
	}
}

// A publisher changes a message and panics over another one of the batch. The first was sent again as the publisher had left it.
func TestMessagesAfterAPanicAreThoseOfTheOutbox(t *testing.T) {
	t.Parallel()
	results := sends(t, func(m *message.Message) error {
		assert.Equal(t, message.Metadata{"h": "v"}, m.Metadata)
		assert.Equal(t, "p", string(m.Payload))
		m.Metadata["h"], m.Payload = "changed", []byte("changed")
		if m.UUID == "1" {
			panic("no such thing")
		}
		return nil
	}, 3, time.Now().Add(time.Minute))
	require.Len(t, results, 3)
	require.NoError(t, results[0])
	require.Error(t, results[1])
	require.NoError(t, results[2])
}

// A publisher that panicked over each event of a batch filled the log with a stack for each.
func TestPanicsOfABatchAreLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, events := range []int{1, 20} {
		var log bytes.Buffer
		results := sendsLogged(t, func(*message.Message) error { panic("it is closed") }, events, time.Now().Add(time.Minute), &log)
		require.Len(t, results, events)
		for _, err := range results {
			require.ErrorIs(t, err, errPanicked)
		}
		assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("stack=")), "%d events", events)
	}
}
