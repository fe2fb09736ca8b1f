package claim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/transport"
)

// model is one ordered key of a consumer of its own: what took effect, and what is kept, in order. Deliveries of the broker
// and of the table are handled one at a time, so each one's outcome is known beforehand.
type model struct {
	*rapid.T
	f        *fixture
	consumer string
	handle   message.HandlerFunc
	broker   *manual
	messages <-chan *message.Message

	sent     int
	done     []string
	kept     []string // the first is retrying or dead, the others are blocked
	gone     []string // discarded
	dead     bool
	attempts int // of the first

	result error // of the next handler
	ran    string
}

const modelAttempts = 3

// manual is a subscriber that delivers what it is told to.
type manual struct{ out chan *message.Message }

func (m *manual) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return m.out, nil
}

func (m *manual) Close() error {
	close(m.out)
	return nil
}

// What happens to one key, in any order of deliveries, failures, redeliveries and operators' commands.
func TestModelOfAKey(t *testing.T) { perMode(t, testModelOfAKey) }

func testModelOfAKey(t *testing.T, f *fixture) {
	n := 0
	f.keepHandled()
	rapid.Check(t, func(t *rapid.T) {
		n++
		m := &model{T: t, f: f, consumer: fmt.Sprint("model-", n), broker: &manual{make(chan *message.Message)}}
		c, err := claim.New(f.store, f.inMode(claim.Config{
			Consumer: func(string) string { return m.consumer }, Ordered: true, MaxAttempts: modelAttempts, Logger: silent,
			Backoff: func(int) time.Duration { return time.Millisecond },
		}))
		require.NoError(t, err)
		claim.PollEvery(c, 10*time.Millisecond)
		m.handle = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if err := f.note(msg); err != nil { // a lazy claim that is refused
				return nil, err
			}
			m.ran = msg.UUID
			return nil, m.result
		})
		sub := c.Subscriber(m.consumer, m.broker)
		m.messages, err = sub.Subscribe(context.Background(), eventTopic)
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Close()) }()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			m.step()
			m.check()
		}
	})
}

func (m *model) step() {
	m.result = rapid.SampledFrom([]error{nil, errOops, claim.Permanent(errOops)}).Draw(m.T, "result")
	steps := map[string]func(){
		"new": func() {
			m.sent++
			m.deliver(m.sent - 1)
		},
	}
	if m.sent > 0 {
		steps["redelivery"] = func() { m.deliver(rapid.IntRange(0, m.sent-1).Draw(m.T, "of")) }
	}
	by, head := deadletter.By{Actor: "model"}, deadletter.Selection{Consumer: "labour/" + m.consumer}
	switch {
	case m.dead:
		steps["replay"] = func() {
			r, err := deadletter.Replay(m.f.t.Context(), m.f.pool, m.f.schema, head, by)
			require.NoError(m.T, err)
			require.Equal(m.T, 1, r.Done)
			m.dead, m.attempts = false, 0
		}
		steps["discard"] = func() {
			r, err := deadletter.Discard(m.f.t.Context(), m.f.pool, m.f.schema, head, by)
			require.NoError(m.T, err)
			require.Equal(m.T, 1, r.Done)
			m.gone = append(m.gone, m.kept[0])
			m.pop()
		}
	case len(m.kept) > 0:
		steps["table"] = func() { m.settle(<-m.messages) }
	}
	names := make([]string, 0, len(steps))
	for name := range steps {
		names = append(names, name)
	}
	slices.Sort(names)
	steps[rapid.SampledFrom(names).Draw(m.T, "step")]()
}

func (m *model) pop() { m.kept, m.dead, m.attempts = m.kept[1:], false, 0 }

// deliver has the broker deliver the event; what the table delivers before it is handled too.
func (m *model) deliver(event int) {
	go func() { m.broker.out <- keyed(fmt.Sprint(event), m.consumer) }()
	for msg := range m.messages {
		if m.settle(msg) {
			return
		}
	}
}

// settle handles a message, and reports whether it was the broker's.
func (m *model) settle(msg *message.Message) (brokers bool) {
	m.ran = ""
	brokers = transport.DeliveryFrom(msg.Context()).Attempt() == 0
	_, err := m.handle(msg)
	require.NoError(m.T, err)
	if !nacked(msg) {
		msg.Ack()
	}
	id := msg.UUID
	switch {
	case !brokers && len(m.kept) > 0 && !m.dead && m.kept[0] == id && m.ran == id:
		m.attempts++
		if m.result == nil {
			m.pop()
			m.done = append(m.done, id)
		} else {
			m.dead = claim.IsPermanent(m.result) || m.attempts >= modelAttempts
		}
	case !brokers: // it was on its way while an operator acted
		require.Empty(m.T, m.ran, "%s does not run", id)
	case slices.Contains(m.done, id), slices.Contains(m.kept, id), slices.Contains(m.gone, id):
		require.Empty(m.T, m.ran, "the redelivery of %s is absorbed", id)
	case len(m.kept) > 0:
		require.Empty(m.T, m.ran, "%s waits behind %s", id, m.kept)
		m.kept = append(m.kept, id)
	default:
		require.Equal(m.T, id, m.ran)
		if m.result == nil {
			m.done = append(m.done, id)
		} else {
			m.kept, m.attempts, m.dead = []string{id}, 1, claim.IsPermanent(m.result)
		}
	}
	return brokers
}

func (m *model) check() {
	rows, err := m.f.pool.Query(context.Background(), `select event_id || ' ' || state || ' ' || attempts from `+m.f.schema+`.claim_failed f
		join `+m.f.schema+`.consumer c on c.id = f.consumer where c.name = $1 order by f.id`, "labour/"+m.consumer)
	require.NoError(m.T, err)
	kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(m.T, err)
	want := []string{}
	for i, id := range m.kept {
		switch {
		case i > 0:
			id += " blocked 0"
		case m.dead:
			id = fmt.Sprint(id, " dead ", m.attempts)
		default:
			id = fmt.Sprint(id, " retrying ", m.attempts)
		}
		want = append(want, id)
	}
	require.Equal(m.T, want, append([]string{}, kept...))
	var done []string
	require.NoError(m.T, m.f.pool.QueryRow(context.Background(), `select array_agg(event_id order by position) from `+m.f.schema+`.handled where key = $1`, m.consumer).
		Scan(&done))
	require.Equal(m.T, m.done, done)
	var held bool
	require.NoError(m.T, m.f.pool.QueryRow(context.Background(), `select exists (select from `+m.f.schema+`.claim_key where key = $1)`, m.consumer).Scan(&held))
	require.Equal(m.T, len(m.kept) > 0, held)
}
