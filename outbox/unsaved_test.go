package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// While deletes do not get through, a relay publishes no more of a shard than MaxInFlight: that, and nothing else, is what
// the next one repeats when it is killed then.
func TestRepeatsNoMoreThanMaxInFlight(t *testing.T) {
	t.Parallel()
	const events = 500
	for name, most := range map[string]int{"few": 30, "many, to see that the test can fail": events} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			for range events / 2 { // two topics, and two keys of one shard
				f.publishMany("one", 1, func(int) string { return "a" })
				f.publishMany("other", 1, func(int) string { return "1" })
			}
			rows, err := f.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = rows.Exec(t.Context(), `select from `+f.schema+`.outbox for update`)
			require.NoError(t, err)
			f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{BatchSize: 10, MaxInFlight: most}))
			if most < events {
				eventually(t, "it publishes until small batches are left", func() bool { return broker.count() > most/2 })
				assert.Never(t, func() bool { return broker.count() > most }, time.Second, 10*time.Millisecond)
			} else {
				eventually(t, "it publishes more", func() bool { return broker.count() > 30 })
			}
			require.NoError(t, rows.Rollback(context.Background()))
			eventually(t, "the outbox drains", func() bool { return f.rows() == 0 })
			assert.Equal(t, events, broker.count())
		})
	}
}
