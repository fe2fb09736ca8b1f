package outboxadmin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// The report says why events of a topic wait, also to a role that only publishes, and which events those topics hold up.
func TestInspectTopicsThatWait(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newTopicBroker()
	writer := f.as("_w", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Writer: r} })
	broker.err["failing"] = fmt.Errorf("%w: permission denied\x00", transport.ErrUnavailable)
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "stopped", outboxadmin.By{Actor: "ada", Note: "maintenance"}))
	f.publishTo("stopped", "k", "1")
	f.publishTo("free", "k", "2") // waits for the one before
	f.publishTo("failing", "l", "3")
	stop := f.relay(broker, outbox.RelayConfig{})
	inspect := map[string]func() *outboxadmin.Report{
		"Inspect": func() *outboxadmin.Report {
			r, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema)
			require.NoError(t, err)
			return r
		},
		"InspectBacklog": func() *outboxadmin.Report {
			r, err := outboxadmin.InspectBacklog(t.Context(), writer.pool, f.schema)
			require.NoError(t, err)
			return r
		},
	}
	moving := func(r *outboxadmin.Report) (n int) {
		for _, s := range r.Shards {
			if s.OldestMoving != nil {
				n++
			}
		}
		return n
	}
	for name, look := range inspect {
		var r *outboxadmin.Report
		eventually(t, name+": the relay says it", func() bool { r = look(); return r.Topics[0].State == outboxadmin.TopicFailing })
		failing, paused := r.Topics[0], r.Topics[1]
		assert.Equal(t, "failing", failing.Topic)
		assert.Contains(t, failing.Reason, "permission denied")
		assert.InDelta(t, 2, r.Age(failing.Since).Seconds(), 60)
		assert.Equal(t, "stopped", paused.Topic)
		assert.Equal(t, outboxadmin.TopicState{State: outboxadmin.TopicPaused, Since: paused.Since, By: "ada", Reason: "maintenance"}, paused.TopicState)
		assert.EqualValues(t, 3, r.Pending.N)
		assert.Zero(t, moving(r), "every event is held up by one of them")
	}
	r := inspect["Inspect"]()
	require.Len(t, r.Topics, 3)
	assert.Equal(t, outboxadmin.TopicState{}, r.Topics[2].TopicState)
	assert.Equal(t, outboxadmin.Count{N: 1}, r.Topics[1].Pending)

	stop() // nobody says any more that the topic fails
	for name, look := range inspect {
		r := look()
		assert.Equal(t, "stopped", r.Topics[0].Topic, name)
		assert.Equal(t, 1, moving(r), name)
	}
	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "stopped", outboxadmin.By{Actor: "ada"}))
	for name, look := range inspect {
		assert.Equal(t, 2, moving(look()), name)
	}
}

// What relays counted in the last hour is added up by topic and by relay. Where more was counted than is read, the oldest minute is left
// out, of which only a part was read.
func TestInspectFlows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	inspect := func(f *fixture) outboxadmin.Flows {
		flows, err := outboxadmin.InspectFlows(t.Context(), f.pool, f.schema)
		require.NoError(t, err)
		return flows
	}
	nothing := inspect(f)
	assert.Equal(t, time.Hour, nothing.Now.Truncate(time.Minute).Sub(nothing.Since))
	assert.Empty(t, nothing.Topics)
	assert.Empty(t, nothing.Relays)

	var minute time.Time
	require.NoError(t, f.pool.QueryRow(t.Context(), `with written as (insert into `+f.schema+`.outbox_journal select date_trunc('minute', now()) - m * interval '1 minute', topic, relay::uuid, 10, 1
		from unnest(array[1, 3, 70]) m, unnest(array['', 'a', 'b']) topic, unnest(array['00000000-0000-7000-8000-000000000001', '00000000-0000-7000-8000-000000000002']) relay) select date_trunc('minute', now())`).Scan(&minute))
	operator := f.as("_o", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r} })
	flows := inspect(operator)
	at := func(published, failed int64) []outboxadmin.FlowMinute {
		return []outboxadmin.FlowMinute{{minute.Add(-3 * time.Minute), published, failed}, {minute.Add(-time.Minute), published, failed}}
	}
	assert.Equal(t, []outboxadmin.Flow{{Topic: "", Minutes: at(20, 2)}, {Topic: "a", Minutes: at(20, 2)}, {Topic: "b", Minutes: at(20, 2)}}, flows.Topics)
	assert.Equal(t, []outboxadmin.Flow{
		{Relay: "00000000-0000-7000-8000-000000000001", Minutes: at(30, 3)}, {Relay: "00000000-0000-7000-8000-000000000002", Minutes: at(30, 3)},
	}, flows.Relays)

	f.exec(`delete from {schema}.outbox_journal`)
	f.exec(`insert into {schema}.outbox_journal select date_trunc('minute', now()) - m * interval '1 minute', 't', gen_random_uuid(), 1, 0 from generate_series(0, 59) m, generate_series(1, 1000)`)
	flows = inspect(f)
	require.Len(t, flows.Topics, 1)
	minutes := flows.Topics[0].Minutes
	assert.LessOrEqual(t, len(minutes), 20)
	assert.Equal(t, minutes[0].At, flows.Since)
	for _, m := range minutes {
		assert.EqualValues(t, 1000, m.Published, "no minute was read in part")
	}
}

// Rows behind those that are counted may be of any topic. Their topics said "nothing waits", and the others' counts looked exact.
func TestInspectTopicsBehindTheLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into ` + f.schema + `.outbox (shard, seq, event_id, topic, key, headers, payload)
		select 3, n, 'p' || n, case when n <= 2100 then 'a' else 'b' end, '', convert_to('{}', 'UTF8'), '' from generate_series(1, 2101) n`)
	r, err := outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.Count{N: 2000, AtLeast: true}, r.Topic("a").Pending)
	assert.Equal(t, outboxadmin.Count{}, r.Topic("a").Failed)
	assert.Equal(t, outboxadmin.Count{AtLeast: true}, r.Topic("b").Pending, "nothing is known")

	f.exec(`delete from ` + f.schema + `.outbox`)
	f.exec(`insert into ` + f.schema + `.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, n, 'f' || n, case when n <= 2100 then 'a' else 'b' end, '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'x' from generate_series(1, 2101) n`)
	r, err = outboxadmin.Inspect(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.Count{N: 2000, AtLeast: true}, r.Topic("a").Failed)
	assert.Equal(t, outboxadmin.Count{AtLeast: true}, r.Topic("b").Failed)
	assert.Equal(t, outboxadmin.Count{}, r.Topic("b").Pending)
}
