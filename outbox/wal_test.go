package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
)

// foreign commits an event as a program in another language would: with plain SQL, and telling nobody.
func (f *fixture) foreign(key, payload string) {
	_, err := f.pool.Exec(f.t.Context(), `insert into `+f.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
		values (3, `+f.schema+`.outbox_next(3::smallint), gen_random_uuid(), $1, $2, '{}', $3)`, topic, key, []byte(payload))
	assert.NoError(f.t, err)
}

// An event that nobody announces is published at once: the log shows it. Nothing else would: the next poll is in an hour.
func TestLogShowsEventsOfAnyWriter(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{Source: outbox.WAL, PollInterval: time.Hour, PollOnly: true}))
	for _, p := range []string{"1", "2", "3", "4", "5"} {
		f.foreign("k", p)
		eventually(t, "it is published", func() bool { n := len(broker.of("k")); return n > 0 && broker.of("k")[n-1] == p })
	}
	eventually(t, "its row is deleted", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"1", "2", "3", "4", "5"}, broker.of("k"))
}
