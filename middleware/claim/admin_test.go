package claim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

var me = claim.By{Actor: "ada", Note: "known"}

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
	found, err := claim.List(f.t.Context(), f.pool, f.schema, claim.Listing{})
	require.NoError(f.t, err)
	states := map[string]string{}
	for _, e := range found {
		states[e.EventID] = e.State
	}
	return states
}

func (f *fixture) audited() (all []string) {
	found, err := claim.ListAudit(f.t.Context(), f.pool, f.schema, "", "", 100)
	require.NoError(f.t, err)
	for _, a := range found {
		assert.Equal(f.t, "ada", a.Actor)
		all = append(all, a.Action+" "+a.EventID)
	}
	return all
}

func TestListOfFailedEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "", "dead", "attempts", "oops")
	f.keep("2", "notify", "k", "dead", "permanent", "no")
	f.keep("3", "notify", "k", "parked", "parked", "")
	f.keep("1", "bill", "", "waiting", "", "oops")
	ids := func(l claim.Listing) string {
		found, err := claim.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		var all []string
		for _, e := range found {
			assert.Empty(t, e.Payload, "only Show has it")
			all = append(all, e.Consumer+" "+e.EventID)
		}
		return strings.Join(all, ", ")
	}
	by := func(s claim.Selection) claim.Listing { return claim.Listing{Selection: s} }
	assert.Equal(t, "notify 1, notify 2, notify 3, bill 1", ids(claim.Listing{}))
	assert.Equal(t, "notify 1, notify 2", ids(claim.Listing{Limit: 2}))
	assert.Equal(t, "bill 1", ids(by(claim.Selection{Consumer: "bill"})))
	assert.Equal(t, "notify 2, notify 3", ids(by(claim.Selection{Key: "k"})))
	assert.Equal(t, "notify 1, notify 2", ids(by(claim.Selection{States: []string{"dead"}})))
	assert.Equal(t, "notify 1, bill 1", ids(by(claim.Selection{EventIDs: []string{"1", "9"}})))
	_, err := claim.List(t.Context(), f.pool, f.schema, by(claim.Selection{States: []string{"lost"}}))
	require.ErrorContains(t, err, `state is "lost": want one of [failing waiting parked dead]`)

	found, err := claim.Show(t.Context(), f.pool, f.schema, "2", "")
	require.NoError(t, err)
	require.Len(t, found, 1)
	e := found[0]
	assert.WithinDuration(t, time.Now(), e.First, time.Hour)
	assert.NotEmpty(t, e.Group)
	e.First, e.Failed, e.Group = time.Time{}, time.Time{}, ""
	assert.Equal(t, "payload", string(e.Payload))
	assert.Equal(t, map[string]string{"a": "1", "b": "2"}, e.Metadata)
	assert.Equal(t, []claim.FailedAttempt{{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "host/1", Error: "oops"}}, e.History)
	assert.Equal(t, []any{"dead", 3, "permanent", "no", 7}, []any{e.State, e.Attempts, e.Reason, e.Error, e.Bytes})
}

// What differs from event to event does not make another group; who selects a group gets what the list shows of it.
func TestErrorGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := 0
	keep := func(reason, failure string) {
		n++
		f.keep(fmt.Sprint("event-", n), []string{"notify", "bill"}[n%2], "", "dead", reason, failure)
	}
	for i := range 3 {
		keep("attempts", fmt.Sprintf(`no user %d in "region %d": can't find it, doesn't exist`, i, i))
	}
	for _, id := range []string{"0197f3a0-1234-7abc-8def-0123456789ab", "5AF9F00D-1234-4ABC-8DEF-0123456789AB"} {
		keep("attempts", "labour "+id+" at 0xc000123 (hash 00ff00ff00ff00ff0) is 'closed'")
	}
	keep("permanent", `claim event "e" for consumer "c \"d\"": no user 7 in "region 7": can't find it, doesn't exist`)
	groups, err := claim.ListGroups(t.Context(), f.pool, f.schema, claim.Selection{})
	require.NoError(t, err)
	var texts []string
	for _, g := range groups {
		texts = append(texts, fmt.Sprint(g.Events, " ", g.Text))
		listed, err := claim.List(t.Context(), f.pool, f.schema, claim.Listing{Selection: claim.Selection{Group: g.Group}})
		require.NoError(t, err)
		assert.Len(t, listed, g.Events)
		for _, e := range listed {
			assert.Equal(t, g.Group, e.Group)
			assert.Contains(t, g.Consumers, e.Consumer)
		}
		assert.False(t, g.First.After(g.Last))
	}
	assert.Equal(t, []string{
		"3 attempts: no user <n> in <text>: can't find it, doesn't exist",
		"2 attempts: labour <id> at <n> (hash <id>) is <text>",
		"1 permanent: no user <n> in <text>: can't find it, doesn't exist",
	}, texts)
	r, err := claim.Discard(t.Context(), f.pool, f.schema, claim.Selection{Group: groups[0].Group}, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Result{Done: 3}, r)
	assert.Equal(t, 3, f.count("claim_failed"))
}

func TestReplayKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "k", "dead", "attempts", "oops")
	f.keep("2", "notify", "k", "dead", "attempts", "oops")
	f.keep("3", "notify", "k", "parked", "parked", "")
	f.keep("4", "notify", "", "dead", "attempts", "oops")
	f.keep("5", "notify", "l", "dead", "attempts", "oops")
	f.keep("6", "notify", "", "failing", "", "oops")
	f.keep("7", "notify", "", "waiting", "", "oops")
	one := claim.Selection{EventIDs: []string{"2"}}
	r, err := claim.Replay(t.Context(), f.pool, f.schema, one, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Result{Done: 1, Behind: 1}, r, "an earlier one of its key is dead still")
	r, err = claim.Replay(t.Context(), f.pool, f.schema, claim.Selection{}, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Result{Done: 3, Others: map[string]int{"parked": 2, "failing": 1, "waiting": 1}}, r)
	assert.Equal(t, map[string]string{
		"1": "waiting", "2": "parked", "3": "parked", "4": "waiting", "5": "waiting", "6": "failing", "7": "waiting",
	}, f.states())
	assert.Equal(t, 3, f.count("claim_failed where due_at <= now() and replayed and attempts = 0"))
	assert.Equal(t, []string{"replay 5", "replay 4", "replay 1", "replay 2"}, f.audited())
	r, err = claim.Replay(t.Context(), f.pool, f.schema, claim.Selection{EventIDs: []string{"7"}, States: []string{"waiting"}}, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Result{Done: 1}, r)
	assert.Equal(t, 2, f.count("claim_key"))
}

func TestDiscardLetsLaterEventsOfTheKeyGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "k", "dead", "attempts", "oops")
	f.keep("2", "notify", "k", "parked", "parked", "")
	f.keep("3", "notify", "k", "parked", "parked", "")
	f.keep("4", "bill", "k", "dead", "attempts", "oops")
	f.keep("5", "notify", "", "dead", "attempts", "oops")
	_, err := claim.Discard(t.Context(), f.pool, f.schema, claim.Selection{Consumer: "notify"}, me)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"2": "waiting", "3": "parked", "4": "dead"}, f.states())
	assert.Equal(t, 2, f.count("claim_key"))
	r, err := claim.Discard(t.Context(), f.pool, f.schema, claim.Selection{Key: "k", States: []string{"dead", "waiting", "parked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, 3, r.Done)
	assert.Zero(t, f.count("claim_key"), "nothing is left of them")
	assert.Equal(t, []string{"discard 4", "discard 3", "discard 2", "discard 5", "discard 1"}, f.audited())
	all, err := claim.ListAudit(t.Context(), f.pool, f.schema, "1", "notify", 1)
	require.NoError(t, err)
	var detail map[string]any
	require.NoError(t, json.Unmarshal(all[0].Detail, &detail))
	assert.Equal(t, map[string]any{
		"note": "known", "state": "dead", "reason": "attempts", "error": "oops", "attempts": 3.0, "key": "k", "topic": "topic",
		"payload_sha256": "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",
	}, detail)
}

// Whoever handles an event has locked its row, and will lock its key.
func TestEventsInHandAreLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "k", "waiting", "", "oops")
	f.keep("2", "notify", "k", "parked", "parked", "")
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from `+f.schema+`.claim_failed where event_id = '1' for update`)
	require.NoError(t, err)
	r, err := claim.Discard(t.Context(), f.pool, f.schema, claim.Selection{States: []string{"waiting", "parked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Result{Done: 1, InHand: 1}, r)
	assert.Equal(t, map[string]string{"1": "waiting"}, f.states())
	err = claim.Edit(t.Context(), f.pool, f.schema, "1", "", claim.Change{Payload: []byte("x")}, me)
	require.ErrorIs(t, err, claim.ErrNoSuchEvent)
}

func TestEditOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "", "dead", "attempts", "oops")
	f.keep("1", "bill", "", "dead", "attempts", "oops")
	edit := func(id, consumer string, change claim.Change) error {
		return claim.Edit(t.Context(), f.pool, f.schema, id, consumer, change, me)
	}
	require.ErrorContains(t, edit("1", "", claim.Change{Payload: []byte("x")}), `failed for the consumers ["notify" "bill"]: name one`)
	require.ErrorIs(t, edit("2", "", claim.Change{Payload: []byte("x")}), claim.ErrNoSuchEvent)
	require.ErrorContains(t, edit("1", "bill", claim.Change{}), "nothing to change")
	require.NoError(t, edit("1", "bill", claim.Change{Set: map[string]string{"b": "3", "c": "4"}, Unset: []string{"a"}}))
	require.NoError(t, edit("1", "bill", claim.Change{Payload: []byte{}}))
	found, err := claim.Show(t.Context(), f.pool, f.schema, "1", "bill")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"b": "3", "c": "4"}, found[0].Metadata)
	assert.Empty(t, found[0].Payload)
	assert.Equal(t, "dead", found[0].State)
	found, err = claim.Show(t.Context(), f.pool, f.schema, "1", "notify")
	require.NoError(t, err)
	assert.Equal(t, "payload", string(found[0].Payload))
	assert.Equal(t, []string{"edit 1", "edit 1"}, f.audited())
}

func TestPurgeOfDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "k", "dead", "attempts", "oops")
	f.keep("2", "notify", "", "waiting", "", "oops")
	f.sql(`update {schema}.claim_failed set failed_at = now() - interval '90 days'`)
	f.sql(`insert into {schema}.claim_audit (at, actor, action, consumer, event_id) values (now() - interval '90 days', 'ada', 'edit', 'notify', '0')`)
	f.keep("3", "notify", "", "dead", "attempts", "oops")
	p, err := claim.Purge(t.Context(), f.pool, f.schema, 60*24*time.Hour, me)
	require.NoError(t, err)
	assert.Equal(t, claim.Purged{Events: 1, Audit: 1}, p)
	assert.Equal(t, map[string]string{"2": "waiting", "3": "dead"}, f.states())
	assert.Zero(t, f.count("claim_key"))
	assert.Equal(t, []string{"purge 1", "purge audit "}, f.audited())
	_, err = claim.Purge(t.Context(), f.pool, f.schema, 0, me)
	require.ErrorContains(t, err, "want more than 0")
}

func TestWhoActsMustBeNamed(t *testing.T) {
	t.Parallel()
	_, err := claim.Replay(t.Context(), nil, "", claim.Selection{}, claim.By{})
	require.ErrorContains(t, err, `replay failed events: By.Actor is "": want the name`)
	require.ErrorContains(t, claim.Edit(t.Context(), nil, "", "1", "", claim.Change{}, claim.By{}), "By.Actor")
	_, err = claim.Discard(t.Context(), nil, "", claim.Selection{States: []string{"failing"}}, me)
	require.ErrorContains(t, err, `state is "failing": want one of [dead waiting parked]`)
}

// A replayed event is handled by a running service, and those that were parked behind it follow in order.
func TestReplayedEventIsHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var mu sync.Mutex
	var handled []string
	var mended atomic.Bool
	c := f.claim(claim.Config{Logger: silent, Ordered: true, MaxAttempts: 2, Backoff: func(int) time.Duration { return time.Millisecond }})
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("notify", "topic", c.Subscriber("notify", channel), func(msg *message.Message) error {
		if msg.UUID == "1" && !mended.Load() {
			return errOops
		}
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, msg.UUID+" "+string(msg.Payload)+" "+msg.Metadata.Get("by"))
		return f.effect(msg.Context(), msg.UUID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	<-router.Running()
	for _, id := range []string{"1", "2", "3"} {
		msg := message.NewMessage(id, []byte("payload"))
		transport.SetKey(msg, "k")
		require.NoError(t, channel.Publish("topic", msg))
	}
	eventually := func(table string, n int) {
		t.Helper()
		require.Eventually(t, func() bool { return f.count(table) == n }, 10*time.Second, 5*time.Millisecond, table)
	}
	eventually("claim_failed where state = 'dead'", 1)
	assert.Equal(t, map[string]string{"1": "dead", "2": "parked", "3": "parked"}, f.states())
	mended.Store(true)
	require.NoError(t, claim.Edit(t.Context(), f.pool, f.schema, "1", "", claim.Change{Payload: []byte("mended"), Set: map[string]string{"by": "ada"}}, me))
	_, err = claim.Replay(t.Context(), f.pool, f.schema, claim.Selection{}, me)
	require.NoError(t, err)
	eventually("effect", 3)
	eventually("claim_failed", 0)
	eventually("claim_key", 0)
	cancel()
	running.Wait()
	assert.Equal(t, []string{"1 mended ada", "2 payload ", "3 payload "}, handled)
}

// Also of an event whose day was dropped while it was dead: it leaves a record where the claim looks.
func TestDiscardedEventIsAbsorbed(t *testing.T) {
	t.Parallel()
	for name, minted := range map[string]time.Time{"of today": time.Now(), "of a dropped day": time.Now().AddDate(0, 0, -60)} {
		f := newFixture(t)
		id := uuid.Must(uuid.NewV7())
		for i := range 6 {
			id[i] = byte(minted.UnixMilli() >> (8 * (5 - i)))
		}
		f.keep(id.String(), "notify", "", "dead", "attempts", "oops")
		f.sql(`update {schema}.consumer set floor = now() - interval '30 days'`)
		_, err := claim.Discard(t.Context(), f.pool, f.schema, claim.Selection{}, me)
		require.NoError(t, err)
		msg, _ := deliver(t, id.String())
		_, err = f.middleware(claim.Config{Logger: silent})(f.handler)(msg)
		require.NoError(t, err, name)
		assert.Empty(t, f.effects(), name)
		assert.Zero(t, f.count("claim_failed"), name)
	}
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
	f.exec(grants)
	return devtest.PoolOn(f.t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
}

func TestOperatorsAndRunNeedNoMoreThanTheirGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := f.as("_o", func(role string) claim.GrantRoles { return claim.GrantRoles{Operator: role} })
	f.keep("1", "notify", "k", "dead", "attempts", "oops")
	f.keep("2", "notify", "k", "parked", "parked", "")
	require.NoError(t, claim.Edit(t.Context(), pool, f.schema, "1", "", claim.Change{Payload: []byte("x")}, me))
	r, err := claim.Replay(t.Context(), pool, f.schema, claim.Selection{}, me)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Done)
	r, err = claim.Discard(t.Context(), pool, f.schema, claim.Selection{States: []string{"waiting", "parked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, 2, r.Done)
	found, err := claim.ListAudit(t.Context(), pool, f.schema, "", "", 10)
	require.NoError(t, err)
	assert.Len(t, found, 4)
	_, err = claim.Purge(t.Context(), pool, f.schema, time.Hour, me)
	require.ErrorContains(t, err, "this is for the owner of the tables")

	f.store = claim.NewPostgresStore(f.as("_c", func(role string) claim.GrantRoles { return claim.GrantRoles{Consumer: role} }), claim.Schema(f.schema))
	f.noted(f.killed(), "3", 0)
	c := f.claim(claim.Config{Logger: silent})
	defer f.running(c)()
	msg, _ := deliver(t, "3")
	_, err = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	require.NoError(t, err)
	assert.Zero(t, f.count("claim_start"))
}

// Another process handles the event while the operator waits for its key, which must not stay held up by nothing.
func TestReplayOfAnEventThatIsHandledMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "notify", "k", "dead", "error", "oops")
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	for _, table := range []string{"claim_key", "claim_failed"} {
		_, err = tx.Exec(t.Context(), `delete from `+f.schema+`.`+table)
		require.NoError(t, err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := claim.Replay(context.Background(), f.pool, f.schema, claim.Selection{}, claim.By{Actor: "ada"})
		done <- err
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity
			where wait_event_type = 'Lock' and query like '%insert into ' || $1 || '.claim_key%')`, `"`+f.schema+`"`).Scan(&waits)
		return err == nil && waits
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	assert.Zero(t, f.count("claim_key"))
}
