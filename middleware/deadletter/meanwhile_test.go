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

// A discard runs in several transactions. An event that becomes dead meanwhile was in no list that anybody has confirmed. The time of its
// failure is that of its transaction's start, which may be before the discard.
func TestEventsThatDieMeanwhileAreNotDiscarded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 3 {
		f.keep(fmt.Sprint("dead-", i), "labour/notify", "", "dead", "error", "oops")
		f.keep(fmt.Sprint("retrying-", i), "labour/notify", "", "retrying", "error", "oops")
	}
	dies := func(event string) func() {
		return func() {
			f.sql(`update {schema}.claim_failed set state = 'dead', failed_at = now() - interval '1 minute' where event_id = $1`, event)
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

// The blocked events of a key are more than one transaction takes: the first of the second part is retried when the first part has gone.
func TestBlockedEventsThatComeToTheirTurnAreDiscarded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("first", "labour/notify", "k", "dead", "error", "oops")
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, handler, topic, headers, payload)
		select consumer, gen_random_uuid(), 'e' || i, key, 'blocked', 0, 'blocked', '', handler, topic, headers, payload from {schema}.claim_failed, generate_series(1, 1000) i`)
	r, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{States: []string{"dead", "blocked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1001}, r)
	assert.Empty(t, f.states())
}

// When a retried event goes, the next one of its key is retried in its place. The operator has confirmed the first one alone.
func TestTheNextEventOfAKeyStaysWhenARetriedOneGoes(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(f *fixture) (deadletter.Result, error){
		"discard": func(f *fixture) (deadletter.Result, error) {
			return deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{States: []string{"retrying"}}, me)
		},
		"redirect": func(f *fixture) (deadletter.Result, error) {
			return deadletter.Redirect(t.Context(), f.pool, f.schema, deadletter.Selection{Consumer: "labour/notify", States: []string{"retrying"}}, "labour/other", me)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.sql(`insert into {schema}.consumer (name) values ('labour/other')`)
			for i, state := range []string{"retrying", "blocked", "blocked"} {
				f.keep(fmt.Sprint("e", i), "labour/notify", "k", state, "error", "oops")
			}
			r, err := act(f)
			require.NoError(t, err)
			assert.Equal(t, 1, r.Done)
			left := f.states()
			assert.Equal(t, "retrying", left["e1"])
			assert.Equal(t, "blocked", left["e2"])
		})
	}
}
