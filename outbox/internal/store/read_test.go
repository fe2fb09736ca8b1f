package store_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

func TestReadLeavesOutPayloads(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), pgschema.Render(`
		insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) values
		(0, 1, 'small',        'open',   '', '{}', 'p'),
		(0, 2, 'hidden',       'closed', '', '{}', 'p'),
		(0, 3, 'large',        'open',   '', '{}', 'pppppppppp'),
		(0, 4, 'hidden large', 'closed', '', '{}', 'pppppppppp')`, schema))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		request step.Request
		want    []string // with their payloads
	}{
		"each below a bound": {step.Request{Each: 5, Hide: []string{"closed"}}, []string{"small"}},
		"all below a bound":  {step.Request{Bytes: 5, Hide: []string{"closed"}}, []string{"small", "large"}}, // one may exceed the rest
		"nothing hidden":     {step.Request{Each: 10}, []string{"small", "hidden", "large", "hidden large"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.request.Limit = 10
			answer, err := store.NewReader(pool, schema).Read(t.Context(), []step.Request{c.request}, false)
			require.NoError(t, err)
			require.Len(t, answer.Shards[0].Above, 4)
			var with []string
			for _, r := range answer.Shards[0].Above {
				if assert.NotZero(t, r.Size); r.Payload != nil {
					with = append(with, r.EventID)
				}
			}
			assert.Equal(t, c.want, with)
		})
	}
}

// Each event costs three allocations: itself, its ID with its key, and its payload.
//
//nolint:paralleltest // the allocations of other tests would count
func TestReadAllocatesLittle(t *testing.T) {
	const rows = 1000
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), pgschema.Render(`
		insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload)
		select 0, n, 'event ' || n, 'topic', 'key ' || n, '{}', convert_to(repeat('p', 1000), 'UTF8') from generate_series(1, 1000) n`, schema))
	require.NoError(t, err)
	reader := store.NewReader(pool, schema)
	per := testing.AllocsPerRun(10, func() {
		answer, err := reader.Read(t.Context(), []step.Request{{Limit: rows, Each: 16_000}}, false)
		require.NoError(t, err)
		require.Len(t, answer.Shards[0].Above, rows)
	}) / rows
	t.Logf("%.2f allocations for a row", per)
	assert.Less(t, per, 3.5)
}
