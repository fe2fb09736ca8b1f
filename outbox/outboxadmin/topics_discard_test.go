package outboxadmin_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// blocking is a broker that answers for the topic "stopped" only when it may.
type blocking struct {
	*topicBroker
	asked, answers chan struct{}
}

func (b blocking) Publish(topic string, msgs ...*message.Message) error {
	if topic == "stopped" {
		b.asked <- struct{}{}
		<-b.answers
	}
	return b.topicBroker.Publish(topic, msgs...)
}

// What is discarded is never published: a discard waits for what is in flight. Events of other topics that waited go on after the
// resume, and a discarded event can be retried.
func TestDiscardPending(t *testing.T) {
	t.Parallel()
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testDiscardPending(t, source)
		})
	}
}

func testDiscardPending(t *testing.T, source outbox.Source) {
	const events = 1200 // more than two transactions discard
	f := newFixture(t)
	operator := f.as("_o", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r} })
	by := outboxadmin.By{Actor: "ada", Note: "test data"}
	devtest.DropSlots(t, f.pool, f.schema+"_outbox_") // f.relay's relays have ended by then
	discard := func(ctx context.Context, s outboxadmin.PendingSelection) (int64, error) {
		s.Topic = "stopped"
		return outboxadmin.DiscardPending(ctx, operator.pool, f.schema, s, by)
	}
	broker := blocking{newTopicBroker(), make(chan struct{}, 10), make(chan struct{})}
	for range 2 {
		f.relay(broker, outbox.RelayConfig{Source: source})
	}
	f.publishTo("stopped", "k0", "in flight")
	<-broker.asked
	_, err := discard(t.Context(), outboxadmin.PendingSelection{})
	require.ErrorIs(t, err, outboxadmin.ErrNotPaused)
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), operator.pool, f.schema, "stopped", by))
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = discard(soon, outboxadmin.PendingSelection{})
	require.ErrorContains(t, err, "has not said that it knows of the pause")
	assert.Equal(t, 1, f.rows())

	close(broker.answers)
	eventually(t, "what was in flight is published", func() bool { return f.rows() == 0 })
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, events)
		for i := range msgs {
			msgs[i] = message.NewMessageWithContext(ctx, outbox.NewID(), []byte(fmt.Sprint(i)))
			transport.SetKey(msgs[i], fmt.Sprint("k", i%40))
		}
		return f.publisher.Publish("stopped", msgs...)
	}))
	f.publishTo("other", "k0", "behind")

	n, err := discard(t.Context(), outboxadmin.PendingSelection{OlderThan: time.Hour})
	require.NoError(t, err)
	assert.Zero(t, n)
	n, err = discard(t.Context(), outboxadmin.PendingSelection{Limit: 100})
	require.NoError(t, err)
	assert.EqualValues(t, 100, n)
	n, err = discard(t.Context(), outboxadmin.PendingSelection{})
	require.NoError(t, err)
	assert.EqualValues(t, events-100, n)

	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), operator.pool, f.schema, "stopped", by))
	eventually(t, "what waited for them goes on", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"behind"}, broker.of("other"))
	assert.Equal(t, []string{"in flight"}, broker.of("stopped"))

	found, err := outboxadmin.List(t.Context(), f.pool, f.schema, outboxadmin.Listing{States: []string{"discarded"}, Limit: 10 * events, Payload: true})
	require.NoError(t, err)
	require.Len(t, found, events)
	assert.Equal(t, "discarded by ada: test data", found[0].Reason)
	_, err = outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{EventIDs: []string{found[0].EventID}}, outboxadmin.By{Actor: "ada"})
	require.NoError(t, err)
	eventually(t, "it is published after all", func() bool { return len(broker.of("stopped")) == 2 })
	assert.Equal(t, string(found[0].Payload), broker.of("stopped")[1])

	audit, err := outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	var actions []string
	for _, a := range audit {
		actions = append(actions, fmt.Sprint(a.Action, " ", a.Events))
	}
	assert.Equal(t, []string{"retry 1", "resume 0", "discard 1100", "discard 100", "discard 0", "pause 0"}, actions)
	_, err = outboxadmin.DiscardPending(t.Context(), f.pool, f.schema, outboxadmin.PendingSelection{OlderThan: -1, Limit: -1}, outboxadmin.By{})
	for _, want := range []string{"Topic is empty", "OlderThan is -1ns", "Limit is -1", "By.Actor"} {
		require.ErrorContains(t, err, want)
	}
}
