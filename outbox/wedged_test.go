package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// A relay whose publisher never returned kept its shards, and their events stood, as long as its process lived.
func TestWedgedPublisherLosesItsShards(t *testing.T) {
	t.Parallel()
	const events = 200 // in all shards
	for name, timeout := range map[string]time.Duration{
		"it has had its time":                              250 * time.Millisecond,
		"it still has time, to see that the test can fail": time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broken, broker := newFixture(t), newRecorder(), newRecorder()
			broken.hold = make(chan struct{})
			f.publishSpread(topic, events, keysOf("k", events))
			f.run(f.newRelay(batchRecorder{broken}, outbox.RelayConfig{PublishTimeout: timeout, DrainTimeout: time.Second}))
			t.Cleanup(func() { close(broken.hold) }) // before it is stopped
			for range 16 {
				<-broken.waiting // the publisher has a batch of each shard
			}
			assert.Equal(t, events, f.rows())
			f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
			if timeout > time.Second {
				assert.Never(t, func() bool { return broker.count() > 0 }, 4*time.Second, 20*time.Millisecond)
				return
			}
			require.Eventually(t, func() bool { return broker.count() == events && f.rows() == 0 }, 2*time.Minute, 20*time.Millisecond,
				"the relay that works publishes all")
			assert.Zero(t, broken.count())
		})
	}
}

// A relay whose credentials had expired kept its share of the shards beside one that worked.
func TestWedgedPublisherThatOnlyFails(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	const events = 200
	f, broker := newFixture(t), newRecorder()
	broken := &failing{batchRecorder: batchRecorder{newRecorder()}}
	expired := fmt.Errorf("%w: the credentials have expired", transport.ErrUnavailable)
	broken.err.Store(&expired)
	f.publishSpread(topic, events, keysOf("k", events))
	f.run(f.newRelay(broken, outbox.RelayConfig{}))
	eventually(t, "it tries", func() bool { return broken.calls.Load() > 0 })
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	eventually(t, "they share", func() bool { return assert.ObjectsAreEqual([]int{8, 8}, f.holders()) })
	eventually(t, "the relay that works publishes the events of its share", func() bool { return broker.count() > 0 })
	assert.Positive(t, f.rows(), "the others stand, until the relay that fails loses them")
	require.Eventually(t, func() bool { return broker.count() == events && f.rows() == 0 }, 2*time.Minute, 20*time.Millisecond)
	assert.Equal(t, []int{16}, f.holders())
	assert.Zero(t, broken.count())
}
