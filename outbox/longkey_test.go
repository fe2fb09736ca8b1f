package outbox_test

import (
	"crypto/rand"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// An index entry holds about 2,700 bytes. A rejected event with a longer key could not become a failed event, and held up
// every other failed event of its shard.
func TestLongKey(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"4,000 bytes": 4000, "1 MB": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			var err error
			f.publisher, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, Limits: transport.Limits{KeyBytes: size}})
			require.NoError(t, err)
			require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 1, nil))
			random := make([]byte, size/2) // an index compresses what repeats
			_, err = rand.Read(random)
			require.NoError(t, err)
			long := hex.EncodeToString(random)
			broker.refuseAll(func(p string) bool { return p == "poison" || p == "poison of a short key" })
			relay := func() (stop func()) {
				return f.run(f.newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{}))
			}
			stop := relay()
			f.publishAll(topic, long, "poison", "next")
			f.publish("short", "poison of a short key")
			f.publish("healthy", "1")
			eventually(t, "the event is dead, its key is blocked", func() bool {
				return assert.ObjectsAreEqual([]string{"poison dead 1", "next blocked 0"}, f.failed(long))
			})
			var reason string
			require.NoError(t, f.pool.QueryRow(t.Context(), `select reason from `+f.schema+`.outbox_failed where key = $1 and state = 'dead'`, long).Scan(&reason))
			assert.Contains(t, reason, transport.ErrRejected.Error())
			eventually(t, "so is the event of another key", func() bool {
				return assert.ObjectsAreEqual([]string{"poison of a short key dead 1"}, f.failed("short"))
			})
			stop()

			relay() // the next relay finds out which keys are blocked
			f.publish(long, "last")
			f.publish("healthy", "2")
			eventually(t, "newcomers of the key are blocked", func() bool { return len(f.failed(long)) == 3 })
			eventually(t, "other keys go on", func() bool { return assert.ObjectsAreEqual([]string{"1", "2"}, broker.of("healthy")) })
			assert.Empty(t, broker.of(long))

			f.command("discard", "poison")
			eventually(t, "those behind a discarded event are sent", func() bool {
				return assert.ObjectsAreEqual([]string{"next", "last"}, broker.of(long))
			})
			eventually(t, "only the discarded event is left", func() bool {
				return assert.ObjectsAreEqual([]string{"poison discarded 1"}, f.failed(long))
			})
			broker.refuseAll(nil)
			f.command("retry", "poison")
			eventually(t, "a discarded event is retried", func() bool { return len(broker.of(long)) == 3 && len(f.failed(long)) == 0 })
		})
	}
}
