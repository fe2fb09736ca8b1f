package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// record makes a step of a migration from the old broker to the new one.
func (f *fixture) record(phase string) {
	_, err := f.pool.Exec(context.Background(), `insert into `+f.schema+`.outbox_broker (epoch, from_name, to_name, phase) values (1, 'old', 'new', $1)
		on conflict (one) do update set epoch = `+f.schema+`.outbox_broker.epoch + 1, phase = excluded.phase`, phase)
	require.NoError(f.t, err)
}

// A relay that takes no part in a migration publishes as long as the record names its broker, and ends when that names another.
func TestRelayEndsWhereTheFleetPublishesElsewhere(t *testing.T) {
	t.Parallel()
	for broker, phases := range map[string][2]string{"old": {"consume", "drain"}, "new": {"publish", "return"}} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			f, got := newFixture(t), newRecorder()
			ended := make(chan error, 1)
			relay := f.newRelay(got, outbox.RelayConfig{Broker: broker})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { ended <- relay.Run(ctx) }()
			f.publish("k", "before the migration")
			eventually(t, "published", func() bool { return f.rows() == 0 })
			f.record(phases[0])
			f.publish("k", "in its first phase")
			eventually(t, "published", func() bool { return f.rows() == 0 })
			f.record(phases[1])
			select {
			case err := <-ended:
				require.ErrorContains(t, err, "in migration from old to new, phase "+phases[1]+", and this relay publishes to "+broker)
			case <-time.After(time.Minute):
				require.Fail(t, "it runs")
			}
			assert.Empty(t, f.holders(), "the shards were given back")
			f.publish("k", "of another relay")
			require.ErrorContains(t, f.newRelay(got, outbox.RelayConfig{Broker: broker}).Run(t.Context()), "this relay publishes to "+broker)
			assert.Equal(t, 1, f.rows())
			assert.Equal(t, []string{"before the migration", "in its first phase"}, got.of("k"))
		})
	}
}

// A step is made while a relay is suspended, which the database then does not count: what it had sent may arrive after the old broker
// was read to its end. So it does not count as published, and the next relay publishes it to the new one.
func TestWhatIsSentWhileARelayIsNotRegisteredDoesNotCount(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.hold = make(chan struct{})
	f.publish("k", "in flight")
	f.run(f.newRelay(broker, outbox.RelayConfig{Broker: "old", LeaseTTL: 2 * time.Second}))
	<-broker.waiting
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table `+f.schema+`.outbox_relay in exclusive mode`) // no renewal
	require.NoError(t, err)
	eventually(t, "it is not registered", func() (over bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select not exists (select from `+f.schema+`.outbox_relay where expires_at > now())`).Scan(&over))
		return over
	})
	close(broker.hold)
	require.NoError(t, tx.Rollback(t.Context()))
	eventually(t, "it is published again", func() bool { return broker.count() > 1 })
	eventually(t, "the row goes", func() bool { return f.rows() == 0 })
}

// A process of the migration has stored a CloudEvent, and after the cut a relay that knows only the new broker publishes it.
func TestRelayGivesCloudEventsTheNamesOfItsBroker(t *testing.T) {
	t.Parallel()
	f, got := newFixture(t), newRecorder()
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := newMessage(ctx, "k", "event")
		msg.Metadata["ce-specversion"], msg.Metadata["ce-id"] = "1.0", msg.UUID
		return f.publisher.Publish(topic, msg)
	}))
	f.run(f.newRelay(got, outbox.RelayConfig{Broker: "kafka"}))
	eventually(t, "published", func() bool { return f.rows() == 0 })
	assert.Equal(t, "1.0", got.last.Metadata["ce_specversion"])
	assert.Equal(t, got.last.UUID, got.last.Metadata["ce_id"])
	assert.NotContains(t, got.last.Metadata, "ce-id")
}
