package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestPublishOutsideATransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := f.publisher.Publish(topic, newMessage(t.Context(), "k", "p"))
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
	assert.ErrorContains(t, err, "pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error", "the error says how to open one")
	assert.ErrorContains(t, err, "pgtx.With")
	assert.Zero(t, f.rows())
}

var errOops = errors.New("oops")

func TestEventsShareTheTransactionsFate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorIs(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return errors.Join(f.publisher.Publish(topic, newMessage(ctx, "k", "rolled back")), errOops)
	}), errOops)
	assert.Zero(t, f.rows())

	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, f.publisher.Publish(topic, newMessage(ctx, "k", "kept")))
		require.ErrorIs(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			return errors.Join(f.publisher.Publish(topic, newMessage(ctx, "k", "undone with its savepoint")), errOops)
		}), errOops)
		return nil
	}))
	assert.Equal(t, 1, f.rows())
}

func TestPublishInACallersOwnTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, commit := range []bool{false, true} {
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.publisher.Publish(topic, newMessage(pgtx.With(t.Context(), tx), "k", "p")))
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
	assert.Equal(t, 1, f.rows())
}

func TestPublishRefusesWhatNoRelayCouldForward(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	limited, err := outbox.NewPublisher(outbox.PublisherConfig{
		Schema: f.schema,
		Limits: transport.Limits{MessageBytes: 100, KeyBytes: 10, MetadataEntries: 1},
	})
	require.NoError(t, err)
	for _, c := range []struct {
		name      string
		publisher *outbox.Publisher
		topic     string
		change    func(*message.Message)
		want      string
	}{
		{"no ID", f.publisher, topic, func(m *message.Message) { m.UUID = "" }, "the message has no ID"},
		{"long ID", f.publisher, topic, func(m *message.Message) { m.UUID = strings.Repeat("i", 256) }, "the limit is 255"},
		{"ID with NUL", f.publisher, topic, func(m *message.Message) { m.UUID = "a\x00" }, "UTF-8"},
		{"topic", f.publisher, "labour completed!", nil, `topic "labour completed!" does not match ^[A-Za-z]`},
		{"no topic", f.publisher, "", nil, `topic "" does not match`},
		{"no topic, own limits", limited, "", nil, `topic "" is empty`},
		{"topic with NUL", limited, "a\x00b", nil, "UTF-8"},
		{"metadata", f.publisher, topic, func(m *message.Message) { m.Metadata["a"] = "\xff" }, "UTF-8"},
		{"default size", f.publisher, topic, func(m *message.Message) { m.Payload = make([]byte, 9_998_001) }, "the limit is 9998000"},
		{"size", limited, topic, func(m *message.Message) { m.Payload = make([]byte, 101) }, "message size in bytes is 138, the limit is 100"},
		{"key", limited, topic, func(m *message.Message) { transport.SetKey(m, "12345678901") }, "key length in bytes is 11, the limit is 10"},
		{"entries", limited, topic, func(m *message.Message) { m.Metadata["a"], m.Metadata["b"] = "", "" }, "number of metadata entries is 2, the limit is 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
				good, bad := newMessage(ctx, "k", "p"), newMessage(ctx, "k", "p")
				if c.change != nil {
					c.change(bad)
				}
				err := c.publisher.Publish(c.topic, good, bad)
				require.ErrorIs(t, err, outbox.ErrInvalidMessage)
				require.ErrorContains(t, err, c.want)
				_, err = tx.Exec(ctx, `select 1`)
				return err // the transaction can go on
			}))
			assert.Zero(t, f.rows(), "nothing of the call was written")
		})
	}
}

// An error of a thousand messages would fill the log.
func TestPublishNamesTheFirstInvalidMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, 1000)
		for i := range msgs {
			msgs[i] = newMessage(ctx, "\xff", "p")
		}
		return f.publisher.Publish(topic, msgs...)
	})
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
	assert.Equal(t, 10, strings.Count(err.Error(), "of 1000"))
	assert.Zero(t, f.rows())
}

func TestPublishRefusesTwoTransactionsInOneCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(one context.Context, _ pgx.Tx) error {
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
		two := pgtx.With(t.Context(), tx)
		require.ErrorContains(t, f.publisher.Publish(topic, newMessage(one, "", "1"), newMessage(two, "", "2")), "another transaction")
		return nil
	}))
	assert.Zero(t, f.rows())
}

func TestNilMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorContains(t, f.publisher.Publish(topic, nil), "message 1 of 1 is nil")
}

func TestMissingTablesAreNamed(t *testing.T) {
	t.Parallel()
	pool := devtest.Pool(t)
	p, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: "nowhere_at_all"})
	require.NoError(t, err)
	err = pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return p.Publish(topic, newMessage(ctx, "", "")) })
	require.ErrorContains(t, err, `run "millrace migrate up" or outbox.Migrate first`)
}

func TestPublisherConfig(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: `no"good`})
	require.ErrorContains(t, err, `PublisherConfig.Schema is "no\"good"`)
	_, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: `no"good`, MaxBacklog: -1})
	require.ErrorContains(t, err, `PublisherConfig.Schema is "no\"good"`)
	require.ErrorContains(t, err, "PublisherConfig.MaxBacklog is -1: want 1 or more")
	_, err = outbox.NewPublisher(outbox.PublisherConfig{Store: outbox.Log, MaxBacklog: 1})
	require.ErrorContains(t, err, "PublisherConfig.MaxBacklog is 1: want 0 where Store is Log")
	_, err = outbox.NewPublisher(outbox.PublisherConfig{Store: 7})
	require.ErrorContains(t, err, "PublisherConfig.Store is Store(7): want Rows or Log")
}
