package claim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// housekeep does for a service with that retention what Run does once an hour.
func (f *fixture) housekeep(service string, keep time.Duration) error {
	f.t.Helper()
	c, err := claim.New(f.store, claim.Config{Service: service, Retention: keep, RedeliveryHorizon: day, Logger: silent})
	require.NoError(f.t, err)
	return claim.Housekeep(f.t.Context(), c)
}

// The service with the shorter retention dropped the records of both. After that, an event of the other one whose ID has no time was
// handled again, and one whose ID has a time became a dead letter.
func TestLongestRetentionOfAllServicesCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`drop table ` + f.schema + `.processed_old`)
	f.exec(fmt.Sprintf(`create table %s.processed_old partition of %[1]s.processed for values from (minvalue) to ('%s')`, f.schema, boundOf(t, -3)))
	require.NoError(t, f.housekeep("labour", 8*day))
	events := []claim.Key{{Consumer: "labour/notify", EventID: mintedAt(-5 * day)}, {Consumer: "labour/notify", EventID: "order 1"}}
	for _, key := range events {
		f.settles(t.Context(), key)
	}
	f.exec(`update ` + f.schema + `.processed set claimed_at = now() - interval '5 days'`)

	require.NoError(t, f.housekeep("billing", 2*day))
	for _, key := range events {
		f.refuses(key, claim.ErrCompleted)
	}
	r, err := claim.Retain(t.Context(), f.pool, f.schema, 2*day)
	require.NoError(t, err)
	assert.Equal(t, claim.Retained{}, r, "as the command does")

	// A service that has gone for longer than it keeps its records no longer counts.
	f.exec(`update ` + f.schema + `.processed_retention set renewed_at = now() - interval '9 days 1 minute' where service = 'labour'`)
	require.NoError(t, f.housekeep("billing", 2*day))
	f.refuses(events[0], claim.ErrTooOld)
	assert.Zero(t, f.count("processed_hashed"))
}
