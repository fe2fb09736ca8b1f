package deadletter_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func TestMain(m *testing.M) { devtest.Main(m) }

var (
	me      = deadletter.By{Actor: "ada", Note: "known"}
	silent  = slog.New(slog.DiscardHandler)
	errOops = errors.New("oops")
)

// fixture is a claim store in a schema of its own, with a table that handlers write to.
type fixture struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	store  *claim.PostgresStore
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	f.sql(`create table {schema}.effect (event_id text not null)`)
	return f
}

// claim is a Claim of the consumer "labour/notify".
func (f *fixture) claim(cfg claim.Config) *claim.Claim {
	cfg.Logger = silent
	cfg.Service, cfg.Consumer = "labour", func(string) string { return "notify" }
	c, err := claim.New(f.store, cfg)
	require.NoError(f.t, err)
	return c
}

// handler writes in its transaction.
func (f *fixture) handler(msg *message.Message) ([]*message.Message, error) {
	tx, _ := pgtx.From(msg.Context())
	_, err := tx.Exec(msg.Context(), `insert into `+f.schema+`.effect values ($1)`, msg.UUID)
	return nil, err
}

// hold claims an event of "labour/notify" until end is called.
func (f *fixture) hold(eventID string) (end func()) { return f.holdOf("labour/notify", eventID) }

func (f *fixture) holdOf(consumer, eventID string) (end func()) {
	claimed, finish, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- f.store.Do(context.Background(), claim.Key{Consumer: consumer, EventID: eventID}, func(context.Context) error {
			close(claimed)
			<-finish
			return nil
		})
	}()
	<-claimed
	return func() {
		close(finish)
		require.NoError(f.t, <-done)
	}
}

func (f *fixture) count(table string) (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.`+table).Scan(&n))
	return n
}

// record returns what the tables call the event and its consumer.
func (f *fixture) record(consumer, eventID string) (record uuid.UUID, number int16) {
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `insert into `+f.schema+`.consumer (name) values ($1)
		on conflict (name) do update set name = excluded.name returning id`, consumer).Scan(&number))
	return inbox.Record(eventID, time.Time{}).Bytes, number
}

// keep puts an event into the table of those that failed, and returns its ID.
func (f *fixture) keep(eventID, consumer, key, state, reason, failure string) {
	f.t.Helper()
	record, number := f.record(consumer, eventID)
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		values ($1, $2, $3, $4, $5, 3, $6, $7, $8, 'handler', 'topic', $9, $10)`, number, record, eventID, key, state, reason, failure,
		`[{"at": "2026-01-02T03:04:05Z", "by": "host/1", "error": "oops"}]`, []byte(`{"uuid": "`+eventID+`", "metadata": {"a": "1", "b": "2"}}`), []byte("payload"))
	if key != "" {
		f.sql(`insert into {schema}.claim_key values ($1, $2) on conflict do nothing`, number, key)
	}
}

// sql executes a statement, with {schema} for the schema's name.
func (f *fixture) sql(sql string, args ...any) {
	f.t.Helper()
	_, err := f.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", f.schema), args...)
	require.NoError(f.t, err)
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

func (f *fixture) audited() (all []string) {
	found, err := deadletter.ListAudit(f.t.Context(), f.pool, f.schema, deadletter.AuditListing{})
	require.NoError(f.t, err)
	for _, a := range found {
		assert.Equal(f.t, "ada", a.Actor)
		all = append(all, a.Action+" "+a.EventID)
	}
	return all
}

// as returns a pool of a role that has been given what Grants says.
func (f *fixture) as(name string, roles func(role string) claim.GrantRoles) *pgxpool.Pool {
	role := f.schema + name
	_, err := f.pool.Exec(f.t.Context(), `create role `+role)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		_, err := f.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role)
		assert.NoError(f.t, err)
	})
	grants, err := claim.Grants(f.schema, roles(role))
	require.NoError(f.t, err)
	f.sql(grants)
	return devtest.PoolOn(f.t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
}
