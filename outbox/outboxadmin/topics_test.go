package outboxadmin_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Two operators redirect two topics to each other at the same moment. Both redirects once were set.
func TestCrossingRedirects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	operator := f.as("_o", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r} })
	crossed := make(chan error, 1)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into `+f.schema+`.outbox_topic (topic, redirect_to) values ('a', 'b')`)
		require.NoError(t, err)
		go func() {
			crossed <- outboxadmin.RedirectTopic(context.Background(), operator.pool, f.schema, "b", "a", ada)
		}()
		eventually(t, "the other one waits, or has ended", func() bool {
			var waits bool
			require.NoError(t, f.pool.QueryRow(ctx, `select exists (select from pg_locks where relation = $1::regclass and not granted)`, f.schema+".outbox_topic").Scan(&waits))
			return waits || len(crossed) > 0
		})
		return nil
	}))
	require.ErrorContains(t, <-crossed, `topic "a" is redirected to "b"`)
}

// topicBroker remembers what it got of each topic: payloads in order of arrival.
type topicBroker struct {
	mu  sync.Mutex
	got map[string][]string
	err map[string]error // what it says of a topic
}

func newTopicBroker() *topicBroker {
	return &topicBroker{got: map[string][]string{}, err: map[string]error{}}
}

func (b *topicBroker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err[topic]; err != nil {
		return err
	}
	for _, m := range msgs {
		b.got[topic] = append(b.got[topic], string(m.Payload))
	}
	return nil
}

func (b *topicBroker) Close() error { return nil }

func (b *topicBroker) of(topic string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got[topic])
}

var ada = outboxadmin.By{Actor: "ada"}

// A pause reaches relays that run by notification, and relays that start from the table. The other topic goes on.
func TestPauseAndResumeTopic(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newTopicBroker()
	pause := func(by outboxadmin.By) {
		require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "paused", by))
	}
	slow := outbox.RelayConfig{PollInterval: time.Hour} // only a notification is in time
	stop := f.relay(broker, slow)
	f.publishTo("paused", "k", "first")
	eventually(t, "the relay runs", func() bool { return len(broker.of("paused")) == 1 })
	pause(outboxadmin.By{Actor: "ada", Note: "maintenance"})
	var want []string
	for n := 0; ; n++ { // what is written while the relay learns of it may still be published
		f.publishTo("paused", "k", fmt.Sprint(n))
		f.publishTo("other", "l", fmt.Sprint(n))
		want = append(want, fmt.Sprint(n))
		eventually(t, "the other topic goes on", func() bool { return len(broker.of("other")) == n+1 })
		if n > 20 && f.rows() > 0 {
			break
		}
		require.Less(t, n, 1000, "the pause does not reach the relay")
	}
	stop()
	sent := len(broker.of("paused"))
	pause(outboxadmin.By{Actor: "bob", Note: "still"})

	f.relay(broker, slow)
	f.publishTo("other", "k", "behind") // waits behind an event of its key
	f.publishTo("other", "l", "free")
	eventually(t, "the next relay runs", func() bool { return slices.Contains(broker.of("other"), "free") })
	assert.Len(t, broker.of("paused"), sent)
	assert.NotContains(t, broker.of("other"), "behind")

	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "paused", ada))
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	assert.Equal(t, append([]string{"first"}, want...), broker.of("paused"))
	require.ErrorIs(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "paused", ada), outboxadmin.ErrNotSet)
	require.ErrorContains(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "", ada), "pause topic: the topic's name is empty")
}

// The events of a redirected topic go to the other one, those that wait and new ones, in the order of their keys. What operators
// did is recorded.
func TestRedirectTopic(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newTopicBroker()
	redirect := func(topic, to string) error {
		return outboxadmin.RedirectTopic(t.Context(), f.pool, f.schema, topic, to, outboxadmin.By{Actor: "ada", Note: "moved"})
	}
	broker.err["old"] = fmt.Errorf("%w: gone", transport.ErrUnavailable)
	stop := f.relay(broker, outbox.RelayConfig{PollInterval: time.Hour})
	f.publishTo("old", "k", "1")
	f.publishTo("new", "k", "2")
	f.publishTo("old", "k", "3")
	eventually(t, "the topic fails", func() bool {
		r, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema)
		require.NoError(t, err)
		return r.Topics[0].State == outboxadmin.TopicFailing
	})
	require.NoError(t, redirect("old", "new"))
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	f.publishTo("old", "k", "4")
	eventually(t, "a new one, too", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"1", "2", "3", "4"}, broker.of("new"))

	require.ErrorContains(t, redirect("new", "third"), `topic "old" is redirected to "new"`)
	require.ErrorContains(t, redirect("third", "old"), `topic "old" is redirected to "new"`)
	require.ErrorContains(t, redirect("old", "old"), "want another topic")
	stop()
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "old", ada))
	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "old", ada))
	r, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	require.Len(t, r.Topics, 1)
	assert.Equal(t, outboxadmin.TopicState{State: outboxadmin.TopicRedirected, To: "new", By: "ada", Reason: "moved", Since: r.Topics[0].Since}, r.Topics[0].TopicState,
		"a pause and its end leave the redirect")
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "new", ada))
	r, err = outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.TopicState{State: outboxadmin.TopicPaused, To: "new", By: "ada", Since: r.Topics[1].Since}, r.Topics[1].TopicState,
		"events wait for the topic that they go to")
	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "new", ada))

	require.NoError(t, outboxadmin.EndRedirect(t.Context(), f.pool, f.schema, "old", ada))
	require.ErrorIs(t, outboxadmin.EndRedirect(t.Context(), f.pool, f.schema, "old", ada), outboxadmin.ErrNotSet)
	delete(broker.err, "old")
	f.relay(broker, outbox.RelayConfig{})
	f.publishTo("old", "k", "5")
	eventually(t, "it goes to its own topic again", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"5"}, broker.of("old"))

	audit, err := outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	var actions []string
	for _, a := range audit {
		actions = append(actions, a.Actor+" "+a.Action)
	}
	assert.Equal(t, []string{"ada end redirect", "ada resume", "ada pause", "ada resume", "ada pause", "ada redirect"}, actions)
	assert.JSONEq(t, `{"note": "moved", "topic": "old", "to": "new"}`, string(audit[5].Detail))
	require.ErrorContains(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "old", outboxadmin.By{}), `By.Actor is ""`)
}
