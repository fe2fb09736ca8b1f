package deadletter_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/pgtx"
)

// afterBegin calls then before the second transaction.
type afterBegin struct {
	pgtx.DB
	n    int
	then func()
}

func (a *afterBegin) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	if a.n++; a.n == 2 {
		a.then()
	}
	return a.DB.BeginTx(ctx, opts)
}

// A discard runs in several transactions. An event that becomes dead meanwhile was in no list that anybody has confirmed.
func TestEventsThatDieMeanwhileAreNotDiscarded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 3 {
		f.keep(fmt.Sprint("dead-", i), "labour/notify", "", "dead", "error", "oops")
		f.keep(fmt.Sprint("retrying-", i), "labour/notify", "", "retrying", "error", "oops")
	}
	dies := func(event string) func() {
		return func() {
			f.sql(`update {schema}.claim_failed set state = 'dead', failed_at = clock_timestamp() where event_id = $1`, event)
		}
	}
	r, err := deadletter.Discard(t.Context(), &afterBegin{DB: f.pool, then: dies("retrying-1")}, f.schema, deadletter.Selection{}, me)
	require.NoError(t, err)
	assert.Equal(t, 3, r.Done)
	assert.Equal(t, "dead", f.states()["retrying-1"])
	r, err = deadletter.Discard(t.Context(), &afterBegin{DB: f.pool, then: dies("retrying-2")}, f.schema, deadletter.Selection{States: []string{"dead", "retrying"}}, me)
	require.NoError(t, err)
	assert.Equal(t, 3, r.Done, "it was selected in either state")
	assert.Empty(t, f.states())
}
