package idempotencykey_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// old stores an answer in a day of long ago, whose rows nobody may delete.
func (f *fixture) old() {
	f.exec(`create table {schema}.idempotency_key_20200101 partition of {schema}.idempotency_key for values from ('2020-01-01') to ('2020-01-02');
		insert into {schema}.idempotency_key select id, '2020-01-01', created_at, service, scope, key, request, fingerprint, status, headers, body
			from {schema}.idempotency_key;
		create function {schema}.refuse() returns trigger language plpgsql as 'begin raise exception ''a row is deleted''; end';
		create trigger refuse before delete on {schema}.idempotency_key for each row execute function {schema}.refuse();
		create trigger refuse_truncate before truncate on {schema}.idempotency_key execute function {schema}.refuse()`)
}

func TestRetentionDropsDays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	require.Equal(t, http.StatusCreated, post(h, "k", "body").Code)
	f.old()
	require.Equal(t, 2, f.count("idempotency_key"))
	done, err := idempotencykey.Retain(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, []string{"idempotency_key_20200101"}, done.Days)
	assert.Equal(t, 1, f.count("idempotency_key"))
	assert.Equal(t, []string{}, f.days("2020%"))
	assert.True(t, replayed(post(h, "k", "body")))

	_, err = idempotencykey.Retain(t.Context(), f.pool, "Big", 24*time.Hour)
	assert.ErrorContains(t, err, `Schema is "Big"`)
	_, err = idempotencykey.Retain(t.Context(), f.pool, f.schema, time.Hour)
	assert.ErrorContains(t, err, "keep is 1h0m0s: want 24h0m0s or more")
}

// An answer is found whatever day it was given on, of those that are kept.
func TestAnswersOfOtherDaysAreFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	require.Equal(t, http.StatusCreated, post(h, "k", "body").Code)
	f.exec(`update {schema}.idempotency_key set day = day - 1`)
	f.exec(`drop table ` + f.schema + `.idempotency_key_` + time.Now().UTC().Format("20060102"))
	assert.True(t, replayed(post(h, "k", "body")))
	assert.Equal(t, "run 2", post(h, "k2", "body").Body.String(), "nobody had made today's partition: a request does")
	f.holds(2, 2)
}

func (f *fixture) days(like string) (names []string) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select coalesce(array_agg(relname::text), '{}') from pg_class
		where relnamespace = $1::regnamespace and relkind = 'r' and relname like 'idempotency_key_' || $2`, f.schema, like).Scan(&names))
	return names
}

func TestRunKeepsTheDays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.old()
	f.exec(`drop table ` + f.schema + `.idempotency_key_` + time.Now().UTC().AddDate(0, 0, 1).Format("20060102"))
	before := len(f.days("%"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.keys(idempotencykey.Config{}).Run(ctx) }()
	require.Eventually(t, func() bool { return len(f.days("2020%")) == 0 && len(f.days("%")) == before }, time.Minute, 10*time.Millisecond)
	stop()
	assert.NoError(t, <-ended)
}

// The service with the shorter retention dropped the answers of both, and a repeated request of the other one was executed again.
func TestLongestRetentionOfAllServicesCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const day = 24 * time.Hour
	shop, billing := f.keys(idempotencykey.Config{Retention: 8 * day}), f.keys(idempotencykey.Config{Service: "billing", Retention: 2 * day})
	h := shop.Middleware(http.HandlerFunc(f.orders))
	require.NoError(t, idempotencykey.Housekeep(t.Context(), shop))
	require.Equal(t, http.StatusCreated, post(h, "k", "body").Code)
	date := time.Now().UTC().AddDate(0, 0, -5)
	f.exec(`create table {schema}.idempotency_key_` + date.Format("20060102") + ` partition of {schema}.idempotency_key
		for values from ('` + date.Format(time.DateOnly) + `') to ('` + date.AddDate(0, 0, 1).Format(time.DateOnly) + `');
		update {schema}.idempotency_key set day = '` + date.Format(time.DateOnly) + `'`)

	require.NoError(t, idempotencykey.Housekeep(t.Context(), billing))
	assert.True(t, replayed(post(h, "k", "body")))
	done, err := idempotencykey.Retain(t.Context(), f.pool, f.schema, 2*day)
	require.NoError(t, err)
	assert.Empty(t, done.Days, "as the command does")

	// A service that has gone for longer than it keeps its answers no longer counts.
	f.exec(`update {schema}.idempotency_key_retention set renewed_at = now() - interval '9 days 1 minute' where service = 'shop'`)
	require.NoError(t, idempotencykey.Housekeep(t.Context(), billing))
	assert.False(t, replayed(post(h, "k", "body")))
}

func TestMigrationsGoBothWays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.Equal(t, http.StatusCreated, post(f.around(f.orders), "k", "body").Code)
	m, err := idempotencykey.Migrations(f.pool, f.schema)
	require.NoError(t, err)
	require.NoError(t, m.Down(t.Context(), 0, false))
	assert.Empty(t, f.days("2%"))
	require.NoError(t, m.Up(t.Context()))
	assert.Len(t, f.days("2%"), 9, "yesterday, today, and a week ahead")
	assert.Equal(t, "run 2", post(f.around(f.orders), "k", "body").Body.String())
}
