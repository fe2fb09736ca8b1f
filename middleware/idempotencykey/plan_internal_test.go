package idempotencykey

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// The console's page lists the latest answers, however many are kept. It sorted all of them.
func TestListReadsTheLatestAlone(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	const each, limit = 20_000, 51
	for day := range 2 {
		_, err := pool.Exec(t.Context(), fmt.Sprintf(`insert into %s.idempotency_key (id, day, created_at, service, scope, key, request, fingerprint, status, headers, body)
			select sha256(format('%d %%s', i)::bytea), (now() at time zone 'utc')::date - %[2]d, now() - interval '%[2]d day' - i * interval '1 ms', 'shop', '', 'k' || i, 'POST /', '', 200, '', ''
			from generate_series(1, %[3]d) i`, schema, day, each))
		require.NoError(t, err)
	}
	found, err := List(t.Context(), pool, schema, Listing{Limit: limit})
	require.NoError(t, err)
	require.Len(t, found, limit)
	assert.Equal(t, "k1", found[0].Key)
	assert.Equal(t, "k51", found[limit-1].Key)

	read := func() (rows float64) {
		var plan []struct{ Plan planNode }
		var text []byte
		require.NoError(t, pool.QueryRow(t.Context(), "explain (analyze, format json) "+pgschema.Query(files, "list", schema), "", nil, limit).Scan(&text))
		require.NoError(t, json.Unmarshal(text, &plan))
		return plan[0].Plan.read()
	}
	const days = 9
	assert.LessOrEqual(t, read(), float64(limit+days), "never analyzed")
	_, err = pool.Exec(t.Context(), `analyze `+schema+`.idempotency_key`)
	require.NoError(t, err)
	assert.LessOrEqual(t, read(), float64(limit+days))
	_, err = pool.Exec(t.Context(), `drop index `+schema+`.idempotency_key_created_at_idx`)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, read(), float64(2*each), "the control: without the index")
}

// planNode is a part of a plan that was executed.
type planNode struct {
	Actual  float64    `json:"Actual Rows"`
	Removed float64    `json:"Rows Removed by Filter"`
	Loops   float64    `json:"Actual Loops"`
	Plans   []planNode `json:"Plans"`
}

// read counts the rows that its scans have read.
func (n planNode) read() (rows float64) {
	if len(n.Plans) == 0 {
		return (n.Actual + n.Removed) * n.Loops
	}
	for _, p := range n.Plans {
		rows += p.read()
	}
	return rows
}
