package idempotencykey_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// A request costs two round trips beyond the handler's own, its events and its stored answer included; a repeated one costs
// two, and a rejection two more.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, counter := devtest.CountedPool(t)
	keys := f.keysOn(pool, idempotencykey.Config{})
	for i, c := range []struct {
		name    string
		want    int
		handler http.HandlerFunc
	}{
		{"nothing", 2, func(http.ResponseWriter, *http.Request) {}},
		{"a statement and an event", 3, f.orders},
		{"a queued statement", 2, func(_ http.ResponseWriter, r *http.Request) {
			assert.NoError(t, pgtx.Queue(r.Context(), `insert into `+f.schema+`.orders values ('order')`))
		}},
		{"a statement and an event, rejected", 5, func(w http.ResponseWriter, r *http.Request) {
			f.orders(headless{w}, r)
			w.WriteHeader(http.StatusBadRequest)
		}},
		{"a 500", 2, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
	} {
		n := 0
		h := keys.Middleware(c.handler)
		assert.Equal(t, c.want, counter.Of(func() {
			n++
			assert.False(t, replayed(post(h, fmt.Sprintf("%d-%d", i, n), "body")))
		}), c.name)
		assert.Equal(t, 2, n)
	}
	h := keys.Middleware(http.HandlerFunc(f.orders))
	require.Equal(t, http.StatusCreated, post(h, "k", "body").Code)
	assert.Equal(t, 2, counter.Of(func() { assert.True(t, replayed(post(h, "k", "body"))) }))
}

// A backend has 16 relation locks that cost little, up to PostgreSQL 17. The look for an answer took two in each of nine days.
func TestRelationLocksOfAKey(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t)
	f.exec(`create table {schema}.locks (relation text)`)
	f.exec(`create function {schema}.note_locks() returns trigger language plpgsql as $$
		begin
			insert into {schema}.locks select c.relname from pg_locks l join pg_class c on c.oid = l.relation
				where l.pid = pg_backend_pid() and c.relname like 'idempotency\_key%';
			return null;
		end $$`)
	f.exec(`create constraint trigger locks after insert on {schema}.orders deferrable initially deferred for each row execute function {schema}.note_locks()`)
	h := f.around(f.orders)
	for i := range 8 { // a generic plan comes after five
		require.Equal(t, http.StatusCreated, post(h, fmt.Sprint("k", i), "body").Code)
		n := f.count("locks")
		assert.Positive(t, n)
		assert.LessOrEqual(t, n, 12, "at COMMIT, of the look and the insert")
		f.exec(`truncate {schema}.locks`)
	}
}

// headless drops the status and the body.
type headless struct{ http.ResponseWriter }

func (headless) WriteHeader(int)             {}
func (headless) Write(b []byte) (int, error) { return len(b), nil }
