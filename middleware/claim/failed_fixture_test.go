package claim_test

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

var me = deadletter.By{Actor: "ada", Note: "known"}

// keep puts an event into the table of those that failed, and returns its ID.
func (f *fixture) keep(eventID, consumer, key, state, reason, failure string) {
	f.t.Helper()
	k := claim.Key{Consumer: consumer, EventID: eventID}
	record, number := claim.Record(f.t.Context(), f.store, k)
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		values ($1, $2, $3, $4, $5, 3, $6, $7, $8, 'handler', 'topic', $9, $10)`, number, record, eventID, key, state, reason, failure,
		`[{"at": "2026-01-02T03:04:05Z", "by": "host/1", "error": "oops"}]`, []byte(`{"uuid": "`+eventID+`", "metadata": {"a": "1", "b": "2"}}`), []byte("payload"))
	if key != "" {
		f.sql(`insert into {schema}.claim_key values ($1, $2) on conflict do nothing`, number, key)
	}
}

// sql is exec with {schema} for the schema's name.
func (f *fixture) sql(sql string, args ...any) {
	f.t.Helper()
	f.exec(strings.ReplaceAll(sql, "{schema}", f.schema), args...)
}

// states tells each event's state.
func (f *fixture) states() map[string]string {
	found, err := deadletter.List(f.t.Context(), f.pool, f.schema, deadletter.Listing{})
	require.NoError(f.t, err)
	states := map[string]string{}
	for _, e := range found {
		states[e.EventID] = e.State
	}
	return states
}
