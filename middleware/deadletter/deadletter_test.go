package deadletter_test

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/transport"
)

func TestListOfFailedEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "", "dead", "attempts", "oops")
	f.keep("2", "labour/notify", "k", "dead", "permanent", "no")
	f.keep("3", "labour/notify", "k", "blocked", "blocked", "")
	f.keep("1", "bill", "", "retrying", "", "oops")
	ids := func(l deadletter.Listing) string {
		found, err := deadletter.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		var all []string
		for _, e := range found {
			assert.Empty(t, e.Payload, "only Show has it")
			all = append(all, e.Consumer+" "+e.EventID)
		}
		return strings.Join(all, ", ")
	}
	by := func(s deadletter.Selection) deadletter.Listing { return deadletter.Listing{Selection: s} }
	assert.Equal(t, "labour/notify 1, labour/notify 2, labour/notify 3, bill 1", ids(deadletter.Listing{}))
	assert.Equal(t, "labour/notify 1, labour/notify 2", ids(deadletter.Listing{Limit: 2}))
	assert.Equal(t, "bill 1", ids(by(deadletter.Selection{Consumer: "bill"})))
	assert.Equal(t, "labour/notify 2, labour/notify 3", ids(by(deadletter.Selection{Key: "k"})))
	assert.Equal(t, "labour/notify 1, labour/notify 2", ids(by(deadletter.Selection{States: []string{"dead"}})))
	assert.Equal(t, "labour/notify 1, bill 1", ids(by(deadletter.Selection{EventIDs: []string{"1", "9"}})))
	_, err := deadletter.List(t.Context(), f.pool, f.schema, by(deadletter.Selection{States: []string{"lost"}}))
	require.ErrorContains(t, err, `state is "lost": want one of [nacked retrying blocked dead]`)

	found, err := deadletter.Show(t.Context(), f.pool, f.schema, "2", "")
	require.NoError(t, err)
	require.Len(t, found, 1)
	e := found[0]
	assert.WithinDuration(t, time.Now(), e.First, time.Hour)
	assert.NotEmpty(t, e.Group)
	e.First, e.Failed, e.Group = time.Time{}, time.Time{}, ""
	assert.Equal(t, "payload", string(e.Payload))
	assert.Equal(t, map[string]string{"a": "1", "b": "2"}, e.Metadata)
	assert.Equal(t, []deadletter.Attempt{{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "host/1", Error: "oops"}}, e.History)
	assert.Equal(t, []any{"dead", 3, "permanent", "no", 7}, []any{e.State, e.Attempts, e.Reason, e.Error, e.Bytes})
}

// What differs from event to event does not make another group; who selects a group gets what the list shows of it.
func TestErrorGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := 0
	keep := func(reason, failure string) {
		n++
		f.keep(fmt.Sprint("event-", n), []string{"labour/notify", "bill"}[n%2], "", "dead", reason, failure)
	}
	for i := range 3 {
		keep("attempts", fmt.Sprintf(`no user %d in "region %d": can't find it, doesn't exist`, i, i))
	}
	for _, id := range []string{"0197f3a0-1234-7abc-8def-0123456789ab", "5AF9F00D-1234-4ABC-8DEF-0123456789AB"} {
		keep("attempts", "labour "+id+" at 0xc000123 (hash 00ff00ff00ff00ff0) is 'closed'")
	}
	keep("permanent", `claim event "e" for consumer "c \"d\"": no user 7 in "region 7": can't find it, doesn't exist`)
	groups, err := deadletter.ListGroups(t.Context(), f.pool, f.schema, deadletter.Selection{})
	require.NoError(t, err)
	var texts []string
	for _, g := range groups {
		texts = append(texts, fmt.Sprint(g.Events, " ", g.Text))
		listed, err := deadletter.List(t.Context(), f.pool, f.schema, deadletter.Listing{Selection: deadletter.Selection{Group: g.Group}})
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
	r, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{Group: groups[0].Group}, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 3}, r)
	assert.Equal(t, 3, f.count("claim_failed"))
}

func TestReplayKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("2", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("3", "labour/notify", "k", "blocked", "blocked", "")
	f.keep("4", "labour/notify", "", "dead", "attempts", "oops")
	f.keep("5", "labour/notify", "l", "dead", "attempts", "oops")
	f.keep("6", "labour/notify", "", "nacked", "", "oops")
	f.keep("7", "labour/notify", "", "retrying", "", "oops")
	one := deadletter.Selection{EventIDs: []string{"2"}}
	r, err := deadletter.Replay(t.Context(), f.pool, f.schema, one, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1, Behind: 1}, r, "an earlier one of its key is dead still")
	r, err = deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{}, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 3, Others: map[string]int{"blocked": 2, "nacked": 1, "retrying": 1}}, r)
	assert.Equal(t, map[string]string{
		"1": "retrying", "2": "blocked", "3": "blocked", "4": "retrying", "5": "retrying", "6": "nacked", "7": "retrying",
	}, f.states())
	assert.Equal(t, 3, f.count("claim_failed where due_at <= now() and replayed and attempts = 0"))
	assert.Equal(t, []string{"replay 5", "replay 4", "replay 1", "replay 2"}, f.audited())
	r, err = deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"7"}, States: []string{"retrying"}}, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1}, r)
	assert.Equal(t, 2, f.count("claim_key"))
}

func TestDiscardLetsLaterEventsOfTheKeyGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("2", "labour/notify", "k", "blocked", "blocked", "")
	f.keep("3", "labour/notify", "k", "blocked", "blocked", "")
	f.keep("4", "bill", "k", "dead", "attempts", "oops")
	f.keep("5", "labour/notify", "", "dead", "attempts", "oops")
	_, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{Consumer: "labour/notify"}, me)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"2": "retrying", "3": "blocked", "4": "dead"}, f.states())
	assert.Equal(t, 2, f.count("claim_key"))
	r, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{Key: "k", States: []string{"dead", "retrying", "blocked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, 3, r.Done)
	assert.Zero(t, f.count("claim_key"), "nothing is left of them")
	assert.Equal(t, []string{"discard 4", "discard 3", "discard 2", "discard 5", "discard 1"}, f.audited())
	all, err := deadletter.ListAudit(t.Context(), f.pool, f.schema, deadletter.AuditListing{EventID: "1", Consumer: "labour/notify", AuditPage: deadletter.AuditPage{Limit: 1}})
	require.NoError(t, err)
	var detail map[string]any
	require.NoError(t, json.Unmarshal(all[0].Detail, &detail))
	assert.Equal(t, map[string]any{
		"note": "known", "state": "dead", "reason": "attempts", "error": "oops", "attempts": 3.0, "key": "k", "topic": "topic",
		"payload_sha256": "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",
	}, detail)
}

// Whoever handles an event has locked its row, and will lock its key.
func TestEventsInFlightAreLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "retrying", "", "oops")
	f.keep("2", "labour/notify", "k", "blocked", "blocked", "")
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from `+f.schema+`.claim_failed where event_id = '1' for update`)
	require.NoError(t, err)
	r, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{States: []string{"retrying", "blocked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1, InFlight: 1}, r)
	assert.Equal(t, map[string]string{"1": "retrying"}, f.states())
	err = deadletter.Edit(t.Context(), f.pool, f.schema, "1", "", deadletter.Change{Payload: []byte("x")}, me)
	require.ErrorIs(t, err, deadletter.ErrNoSuchEvent)
}

func TestEditOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "", "dead", "attempts", "oops")
	f.keep("1", "bill", "", "dead", "attempts", "oops")
	edit := func(id, consumer string, change deadletter.Change) error {
		return deadletter.Edit(t.Context(), f.pool, f.schema, id, consumer, change, me)
	}
	require.ErrorContains(t, edit("1", "", deadletter.Change{Payload: []byte("x")}), `failed for the consumers ["labour/notify" "bill"]: name one`)
	require.ErrorIs(t, edit("2", "", deadletter.Change{Payload: []byte("x")}), deadletter.ErrNoSuchEvent)
	require.ErrorContains(t, edit("1", "bill", deadletter.Change{}), "nothing to change")
	require.NoError(t, edit("1", "bill", deadletter.Change{Set: map[string]string{"b": "3", "c": "4"}, Unset: []string{"a"}}))
	require.NoError(t, edit("1", "bill", deadletter.Change{Payload: []byte{}}))
	found, err := deadletter.Show(t.Context(), f.pool, f.schema, "1", "bill")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"b": "3", "c": "4"}, found[0].Metadata)
	assert.Empty(t, found[0].Payload)
	assert.Equal(t, "dead", found[0].State)
	found, err = deadletter.Show(t.Context(), f.pool, f.schema, "1", "labour/notify")
	require.NoError(t, err)
	assert.Equal(t, "payload", string(found[0].Payload))
	assert.Equal(t, []string{"edit 1", "edit 1"}, f.audited())
	all, err := deadletter.ListAudit(t.Context(), f.pool, f.schema, deadletter.AuditListing{EventID: "1", Consumer: "bill", AuditPage: deadletter.AuditPage{Limit: 1}})
	require.NoError(t, err)
	assert.Contains(t, string(all[0].Detail), `"payload_sha256": "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5"`, "of the former payload")
	assert.Contains(t, string(all[0].Detail), `"new_payload_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`)
	fixed := deadletter.Change{Payload: []byte("fixed"), Former: deadletter.SHA256([]byte("payload"))}
	require.ErrorIs(t, edit("1", "bill", fixed), deadletter.ErrPayloadChanged, "it is empty now")
	require.NoError(t, edit("1", "labour/notify", fixed))
	assert.Len(t, f.audited(), 3)
}

func TestPurgeOfDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("2", "labour/notify", "", "retrying", "", "oops")
	f.sql(`update {schema}.claim_failed set failed_at = now() - interval '90 days'`)
	f.sql(`insert into {schema}.claim_audit (at, actor, action, consumer, event_id) values (now() - interval '90 days', 'ada', 'edit', 'labour/notify', '0')`)
	f.keep("3", "labour/notify", "", "dead", "attempts", "oops")
	p, err := deadletter.Purge(t.Context(), f.pool, f.schema, 60*24*time.Hour, me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Purged{Events: 1, Audit: 1}, p)
	assert.Equal(t, map[string]string{"2": "retrying", "3": "dead"}, f.states())
	assert.Zero(t, f.count("claim_key"))
	assert.Equal(t, []string{"purge 1", "purge audit "}, f.audited())
	_, err = deadletter.Purge(t.Context(), f.pool, f.schema, 0, me)
	require.ErrorContains(t, err, "want more than 0")
}

func TestWhoActsMustBeNamed(t *testing.T) {
	t.Parallel()
	_, err := deadletter.Replay(t.Context(), nil, "", deadletter.Selection{}, deadletter.By{})
	require.ErrorContains(t, err, `replay failed events: By.Actor is "": want the name`)
	require.ErrorContains(t, deadletter.Edit(t.Context(), nil, "", "1", "", deadletter.Change{}, deadletter.By{}), "By.Actor")
	_, err = deadletter.Discard(t.Context(), nil, "", deadletter.Selection{States: []string{"nacked"}}, me)
	require.ErrorContains(t, err, `state is "nacked": want one of [dead retrying blocked]`)
}

// A replayed event is handled by a running service, and those that were blocked behind it follow in order.
func TestReplayedEventIsHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var mu sync.Mutex
	var handled []string
	var mended atomic.Bool
	c := f.claim(claim.Config{Ordered: true, MaxAttempts: 2, Backoff: func(int) time.Duration { return time.Millisecond }})
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
		_, err := f.handler(msg)
		return err
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
		require.Eventually(t, func() bool { return f.count(table) == n }, time.Minute, 5*time.Millisecond, table)
	}
	eventually("claim_failed where state = 'dead'", 1)
	assert.Equal(t, map[string]string{"1": "dead", "2": "blocked", "3": "blocked"}, f.states())
	mended.Store(true)
	require.NoError(t, deadletter.Edit(t.Context(), f.pool, f.schema, "1", "", deadletter.Change{Payload: []byte("mended"), Set: map[string]string{"by": "ada"}}, me))
	_, err = deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{}, me)
	require.NoError(t, err)
	eventually("effect", 3)
	eventually("claim_failed", 0)
	eventually("claim_key", 0)
	cancel()
	running.Wait()
	assert.Equal(t, []string{"1 mended ada", "2 payload ", "3 payload "}, handled)
	for _, id := range []string{"1", "2"} {
		found, err := deadletter.Find(t.Context(), f.pool, f.schema, claim.Key{EventID: id})
		require.NoError(t, err)
		require.NotNil(t, found[0].Claimed, id)
		assert.True(t, found[0].Kept, "%s: its record is from before it was handled", id)
		assert.Nil(t, found[0].Committed, id)
	}
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
		f.keep(id.String(), "labour/notify", "", "dead", "attempts", "oops")
		f.sql(`update {schema}.consumer set floor = now() - interval '30 days'`)
		_, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{}, me)
		require.NoError(t, err)
		_, err = f.claim(claim.Config{}).Middleware(f.handler)(message.NewMessageWithContext(t.Context(), id.String(), nil))
		require.NoError(t, err, name)
		assert.Zero(t, f.count("effect"), name)
		assert.Zero(t, f.count("claim_failed"), name)
	}
}

func TestOperatorsNeedNoMoreThanTheirGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := f.as("_o", func(role string) claim.GrantRoles { return claim.GrantRoles{Operator: role} })
	f.keep("1", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("2", "labour/notify", "k", "blocked", "blocked", "")
	require.NoError(t, deadletter.Edit(t.Context(), pool, f.schema, "1", "", deadletter.Change{Payload: []byte("x")}, me))
	r, err := deadletter.Replay(t.Context(), pool, f.schema, deadletter.Selection{}, me)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Done)
	r, err = deadletter.Discard(t.Context(), pool, f.schema, deadletter.Selection{States: []string{"retrying", "blocked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, 2, r.Done)
	f.keep("3", "labour/notify", "k", "dead", "attempts", "oops")
	f.record("billing/notify", "3")
	r, err = deadletter.Redirect(t.Context(), pool, f.schema, deadletter.Selection{}, "billing/notify", me)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Done)
	found, err := deadletter.ListAudit(t.Context(), pool, f.schema, deadletter.AuditListing{})
	require.NoError(t, err)
	assert.Len(t, found, 5)
	_, err = deadletter.Purge(t.Context(), pool, f.schema, time.Hour, me)
	require.ErrorContains(t, err, "this is for the owner of the tables")
}

// Another process handles the event while the operator waits for its key, which must not stay held up by nothing.
func TestReplayOfAnEventThatIsHandledMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "dead", "error", "oops")
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	for _, table := range []string{"claim_key", "claim_failed"} {
		_, err = tx.Exec(t.Context(), `delete from `+f.schema+`.`+table)
		require.NoError(t, err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := deadletter.Replay(context.Background(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "ada"})
		done <- err
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity
			where wait_event_type = 'Lock' and query like '%insert into ' || $1 || '.claim_key%')`, `"`+f.schema+`"`).Scan(&waits)
		return err == nil && waits
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	assert.Zero(t, f.count("claim_key"))
}
