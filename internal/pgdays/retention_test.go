package pgdays

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpiryIsThatOfTheLongestRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const day = 24 * time.Hour
	expires := func(service string, keep, want time.Duration) {
		t.Helper()
		before, err := f.table.Expiry(t.Context(), f.pool, service, keep)
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now().Add(-want), before, time.Minute)
	}
	services := func() (names []string) {
		all, err := f.table.Retentions(t.Context(), f.pool)
		require.NoError(t, err)
		for _, r := range all {
			names = append(names, r.Service)
		}
		return names
	}
	_, err := f.table.Expiry(t.Context(), f.pool, "labour", day)
	require.ErrorContains(t, err, "retentions of seen: ")
	f.exec(`create table {schema}.seen_retention (service text, keep interval, renewed_at timestamptz not null default now(), primary key (service, keep))`)
	expires("", day, day)
	assert.Empty(t, services(), "nobody asked")
	expires("labour", 8*day, 8*day)
	expires("billing", 2*day, 8*day)
	expires("", day, 8*day)
	expires("", 9*day, 9*day)
	assert.Equal(t, []string{"labour", "billing"}, services())

	// Two processes of a service differ, because it is being deployed, or has two claims.
	expires("labour", 3*day, 8*day)
	expires("labour", 8*day, 8*day)
	assert.Equal(t, []string{"labour", "labour", "billing"}, services())
	f.exec(`delete from {schema}.seen_retention where service = 'labour' and keep <> '8 days'`)

	f.exec(`update {schema}.seen_retention set renewed_at = now() - interval '8 days 23 hours' where service = 'labour'`)
	expires("billing", 2*day, 8*day)
	f.exec(`update {schema}.seen_retention set renewed_at = now() - interval '9 days 1 second' where service = 'labour'`)
	expires("billing", 2*day, 2*day)
	assert.Equal(t, []string{"billing"}, services())
	expires("labour", 8*day, 8*day)
	expires("billing", 2*day, 8*day)
}
