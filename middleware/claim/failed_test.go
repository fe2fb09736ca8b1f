package claim_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

var silent = slog.New(slog.DiscardHandler)

// failedRow is a row of claim_failed.
type failedRow struct {
	EventID, Key, State, Reason, Error string
	Attempts                           int
	History                            string
	Payload                            []byte
}

func (f *fixture) failed() []failedRow {
	rows, err := f.pool.Query(context.Background(), `select event_id, key, state, reason, error, attempts, history::text, payload
		from `+f.schema+`.claim_failed order by id`)
	require.NoError(f.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[failedRow])
	require.NoError(f.t, err)
	return all
}

func (f *fixture) exec(sql string, args ...any) {
	_, err := f.pool.Exec(context.Background(), sql, args...)
	require.NoError(f.t, err)
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

// Each delivery meets a process that was started anew: what counts is in the database.
func TestAttemptsAreCountedOverRestarts(t *testing.T) { perMode(t, testAttemptsAreCountedOverRestarts) }

func testAttemptsAreCountedOverRestarts(t *testing.T, f *fixture) {
	id := outbox.NewID()
	deliverOnce := func(h message.HandlerFunc) (time.Duration, error) {
		cfg := claim.Config{MaxAttempts: 3, Logger: silent, Backoff: func(n int) time.Duration { return time.Duration(n) * time.Minute }}
		msg, d := deliver(t, id)
		msg.Payload = []byte("payload")
		_, err := f.middleware(cfg)(h)(msg)
		return d.retryAfter, err
	}
	for attempt := 1; attempt < 3; attempt++ {
		delay, err := deliverOnce(failing(errOops))
		require.ErrorIs(t, err, errOops, "the broker keeps the event")
		assert.Equal(t, time.Duration(attempt)*time.Minute, delay)
		row := f.failed()[0]
		assert.Equal(t, "nacked", row.State)
		assert.Equal(t, attempt, row.Attempts)
		assert.Nil(t, row.Payload, "the broker has it")
		assert.Zero(t, f.count("processed"))
	}
	_, err := deliverOnce(failing(errOops))
	require.NoError(t, err, "a dead letter is acked")
	require.Len(t, f.failed(), 1)
	row := f.failed()[0]
	assert.Equal(t, "dead", row.State)
	assert.Equal(t, "attempts", row.Reason)
	assert.Contains(t, row.Error, "oops")
	assert.Equal(t, "payload", string(row.Payload))
	var history []struct{ At, By, Error string }
	require.NoError(t, json.Unmarshal([]byte(row.History), &history))
	require.Len(t, history, 3)
	assert.Contains(t, history[0].Error, "oops")
	assert.NotEmpty(t, history[0].By)

	_, err = deliverOnce(f.handler)
	require.NoError(t, err, "what was acked and is redelivered is absorbed")
	assert.Empty(t, f.effects())
	assert.Len(t, f.failed(), 1)
}

func TestErrorsThatAreNotLikeOthers(t *testing.T) { perMode(t, testErrorsThatAreNotLikeOthers) }

func testErrorsThatAreNotLikeOthers(t *testing.T, f *fixture) {
	msg, _ := deliver(t, "permanent")
	mw := f.middleware(claim.Config{Logger: silent, HandlerTimeout: 3 * time.Second})
	_, err := mw(failing(fmt.Errorf("parse: %w", claim.Permanent(errOops))))(msg)
	require.NoError(t, err)

	msg, d := deliver(t, "later")
	_, err = mw(failing(fmt.Errorf("in doubt: %w", later(7*time.Second))))(msg)
	require.Error(t, err)
	assert.Equal(t, 7*time.Second, d.retryAfter)

	msg, _ = deliver(t, "panic")
	_, err = mw(func(*message.Message) ([]*message.Message, error) { panic("what now") })(msg)
	require.ErrorContains(t, err, "what now")

	msg, _ = deliver(t, "deadline")
	_, err = mw(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, nil
	})(msg)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	msg, d = deliver(t, "outage")
	_, err = mw(func(msg *message.Message) ([]*message.Message, error) {
		f.killConnection(msg.Context())
		return nil, errors.New("this says nothing of the connection")
	})(msg)
	require.Error(t, err)
	assert.Positive(t, d.retryAfter)

	got := map[string]failedRow{}
	for _, row := range f.failed() {
		got[row.EventID] = row
	}
	assert.Len(t, got, 3, "what asked for another time, and an outage, is no attempt")
	assert.Equal(t, "permanent dead", got["permanent"].Reason+" "+got["permanent"].State)
	assert.Equal(t, "panic nacked", got["panic"].Reason+" "+got["panic"].State)
	assert.Contains(t, got["panic"].Error, "failed_test.go", "the stack is kept")
	assert.Equal(t, "deadline nacked", got["deadline"].Reason+" "+got["deadline"].State)
	assert.Empty(t, f.effects())
}

type later time.Duration

func (l later) Error() string             { return "later" }
func (l later) RetryAfter() time.Duration { return time.Duration(l) }

// A process that fails late finds that another one has handled the event: nothing is counted, and it acks.
func TestFailureOfAnEventThatAnotherProcessHandled(t *testing.T) {
	t.Parallel()
	f, id := newFixture(t), outbox.NewID()
	store := settled{f.store, func() {
		require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: id}))
	}}
	c, err := claim.New(store, claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }, Logger: silent})
	require.NoError(t, err)
	msg, _ := deliver(t, id)
	_, err = c.Middleware(failing(errOops))(msg)
	require.NoError(t, err)
	assert.Empty(t, f.failed())
	assert.Equal(t, map[string]int{id: 1}, f.effects())
}

// settled is a store in front of the PostgreSQL one that does something after each claim.
type settled struct {
	*claim.PostgresStore
	after func()
}

func (s settled) Unwrap() claim.Store { return s.PostgresStore }

func (s settled) Do(ctx context.Context, key claim.Key, fn func(context.Context) error) error {
	defer s.after()
	return s.PostgresStore.Do(ctx, key, fn)
}

// While another process has the event in hand a failure is not recorded, and nothing is acked.
func TestFailureWhileAnotherProcessHasTheEvent(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	var end func(error) error
	c, err := claim.New(settled{f.store, func() { end = f.holding(key) }}, claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }, Logger: silent})
	require.NoError(t, err)
	msg, d := deliver(t, key.EventID)
	_, err = c.Middleware(failing(claim.Permanent(errOops)))(msg)
	require.NoError(t, err)
	assert.True(t, nacked(msg))
	assert.Positive(t, d.retryAfter)
	require.NoError(t, end(nil))
	assert.Empty(t, f.failed())
	assert.Equal(t, map[string]int{key.EventID: 1}, f.effects())
}

func TestMalformedMessages(t *testing.T) { perMode(t, testMalformedMessages) }

func testMalformedMessages(t *testing.T, f *fixture) {
	bad := map[string]func(*message.Message) (string, error){
		"no ID":         nil,
		"an error":      func(*message.Message) (string, error) { return "", errOops },
		"a panic":       func(*message.Message) (string, error) { panic("no header") },
		"no text":       func(*message.Message) (string, error) { return "a\xff\x00", nil },
		"too long":      func(*message.Message) (string, error) { return longID(2001), nil },
		"binary header": nil,
	}
	for name, eventID := range bad {
		for range 3 { // redeliveries coincide
			msg, _ := deliver(t, "")
			msg.Payload = []byte(name)
			msg.Metadata.Set("a\x00", "\xff\xfe")
			_, err := f.middleware(claim.Config{EventID: eventID, Logger: silent, DeadLetterTopic: "dead"})(f.handler)(msg)
			require.NoError(t, err, "acked: it would come back for ever")
		}
	}
	rows := f.failed()
	require.Len(t, rows, len(bad))
	for _, row := range rows {
		assert.Equal(t, "dead malformed", row.State+" "+row.Reason)
		assert.Contains(t, bad, string(row.Payload))
	}
	assert.Empty(t, f.effects())
	assert.Zero(t, f.count("outbox"), "no message could carry such metadata")
}

// longID returns an ID that the server cannot compress.
func longID(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)[:n]
}

// An index entry has at most a third of a page. An event with an ID of 3,000 bytes could fail and never be recorded, so it was retried
// for ever. The longest ID that is accepted has its place in each index.
func TestLongestEventID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := longID(2000)
	msg, _ := deliver(t, id)
	_, err := f.middleware(claim.Config{Logger: silent})(failing(claim.Permanent(errOops)))(msg)
	require.NoError(t, err)
	require.Len(t, f.failed(), 1)
	assert.Equal(t, "dead permanent "+id, f.failed()[0].State+" "+f.failed()[0].Reason+" "+f.failed()[0].EventID)
	_, err = deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{id}}, me)
	require.NoError(t, err)
	assert.Equal(t, 1, f.count("claim_audit where event_id = '"+id+"'"))

	msg, _ = deliver(t, longID(3000))
	_, err = f.middleware(claim.Config{Logger: silent})(failing(claim.Permanent(errOops)))(msg)
	require.NoError(t, err)
	assert.Contains(t, f.failed()[0].Error, "has 3000 bytes: want at most 2000; have its producer send a shorter one, or")
}

func TestDeadLettersAreForwarded(t *testing.T) { perMode(t, testDeadLettersAreForwarded) }

func testDeadLettersAreForwarded(t *testing.T, f *fixture) {
	for range 2 {
		msg, _ := deliver(t, "1")
		msg.Payload = []byte("payload")
		msg.Metadata.Set("type", "labour.completed")
		_, err := f.middleware(claim.Config{DeadLetterTopic: "dead", Logger: silent})(failing(claim.Permanent(errOops)))(msg)
		require.NoError(t, err)
	}
	var id, topic, payload, text string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select event_id, topic, convert_from(payload, 'UTF8'), convert_from(headers, 'UTF8') from `+f.schema+`.outbox`).
		Scan(&id, &topic, &payload, &text), "one copy")
	assert.Equal(t, "1", id, "Config.DeadLetterTopic says so")
	var headers map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &headers))
	assert.Equal(t, "dead payload", topic+" "+payload)
	assert.Equal(t, "labour.completed", headers["type"])
	assert.Equal(t, "permanent", headers[claim.DeadReasonMetadata])
	assert.Equal(t, "labour/notify", headers[claim.DeadConsumerMetadata])
	assert.Equal(t, "1", headers[claim.DeadAttemptsMetadata])
	assert.Contains(t, headers[claim.DeadErrorMetadata], "oops")
}

// Without a place to keep it nothing is acked.
func TestFailureThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := settled{f.store, func() { f.exec(`drop table ` + f.schema + `.claim_failed`) }}
	c, err := claim.New(store, claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }, Logger: silent})
	require.NoError(t, err)
	msg, d := deliver(t, "1")
	_, err = c.Middleware(failing(claim.Permanent(errOops)))(msg)
	require.ErrorIs(t, err, errOops)
	require.ErrorContains(t, err, "record the failure")
	assert.Positive(t, d.retryAfter)
	assert.Zero(t, f.count("processed"))
}

func TestStoreWithoutPostgres(t *testing.T) {
	t.Parallel()
	var bare nothing
	_, err := claim.New(bare, claim.Config{Service: "labour", MaxAttempts: 3, Ordered: true, DeadLetterTopic: "dead", Backoff: func(int) time.Duration { return 0 }})
	for _, field := range []string{"MaxAttempts", "Ordered", "DeadLetterTopic", "Backoff"} {
		require.ErrorContains(t, err, "Config."+field+" is set")
	}
	c, err := claim.New(bare, claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	msg, _ := deliver(t, "1")
	_, err = c.Middleware(failing(claim.Permanent(errOops)))(msg)
	require.ErrorIs(t, err, errOops, "the router's")
	_, err = c.Subscriber("notify", nil).Subscribe(t.Context(), "topic")
	require.ErrorContains(t, err, "PostgreSQL")
}

type nothing struct{}

func (nothing) Do(ctx context.Context, _ claim.Key, fn func(context.Context) error) error {
	return fn(ctx)
}
func (nothing) Stage(context.Context, string, ...*message.Message) error { return nil }

func TestConfigOfAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.New(f.store, claim.Config{Service: "labour", MaxAttempts: -1, DeadLetterTopic: "\xff"})
	require.ErrorContains(t, err, "Config.MaxAttempts is -1")
	require.ErrorContains(t, err, `Config.DeadLetterTopic is "\xff"`)
}

// A handler that bounds its own statement: pgx closes the connection when such a context ends, which is no outage.
func TestDeadlineOfAStatementIsAnAttempt(t *testing.T) {
	perMode(t, testDeadlineOfAStatementIsAnAttempt)
}

func testDeadlineOfAStatementIsAnAttempt(t *testing.T, f *fixture) {
	id := outbox.NewID()
	mw := f.middleware(claim.Config{Logger: silent, MaxAttempts: 2})
	h := mw(func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(msg.Context(), 20*time.Millisecond)
		defer cancel()
		tx, _ := pgtx.From(ctx)
		_, err := tx.Exec(ctx, `select pg_sleep(10)`) // the server runs it to the end if the cancellation comes before it begins
		return nil, err
	})
	f.eventually(func() bool { // a group claims it again by itself, where the server may not have noticed yet that the connection is gone
		msg, _ := deliver(t, id)
		_, err := h(msg)
		return err == nil && !nacked(msg)
	}, "it is acked")
	require.Len(t, f.failed(), 1)
	assert.Equal(t, "dead 2", fmt.Sprint(f.failed()[0].State, " ", f.failed()[0].Attempts))
}

// All connections are in the hands of others for most of the time: the handler that gets one too late is not to blame.
func TestHandlerThatGetsItsConnectionTooLateHasNoAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.pool.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	store := claim.NewPostgresStore(pool, claim.Schema(f.schema))
	c, err := claim.New(store, claim.Config{Service: "labour", Logger: silent, HandlerTimeout: 3 * time.Second, Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	msg, _ := deliver(t, "known")
	_, err = c.Middleware(f.handler)(msg)
	require.NoError(t, err)

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	time.AfterFunc(2400*time.Millisecond, conn.Release)
	msg, _ = deliver(t, "late")
	_, err = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	})(msg)
	require.Error(t, err)
	assert.Zero(t, f.count("claim_failed"))
}

// TestRejectIsPermanent: what a handler rejects is a dead letter of the claim after one attempt.
func TestRejectIsPermanent(t *testing.T) { perMode(t, testRejectIsPermanent) }

func testRejectIsPermanent(t *testing.T, f *fixture) {
	msg, _ := deliver(t, "rejected")
	_, err := f.middleware(claim.Config{Logger: silent})(func(msg *message.Message) ([]*message.Message, error) {
		transport.DeliveryFrom(msg.Context()).Reject(errOops)
		return nil, errOops
	})(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, f.count(`claim_failed where event_id = 'rejected' and state = 'dead' and attempts = 1`))
}

// A rejection is its handler's. It is no reason for the broker to take away what the claim nacks, nor for a verdict about another handler.
func TestRejectionEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	rejects := func(msg *message.Message) ([]*message.Message, error) {
		transport.DeliveryFrom(msg.Context()).Reject(errOops)
		return nil, errOops
	}
	t.Run("the failure cannot be recorded", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.exec(`alter table ` + f.schema + `.claim_failed rename to gone`)
		msg, d := deliver(t, "rejected")
		_, err := f.middleware(claim.Config{Logger: silent})(rejects)(msg)
		require.Error(t, err)
		require.NoError(t, d.Rejected(), "the broker redelivers it")
	})
	t.Run("another consumer of the message fails", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		msg, d := deliver(t, "shared")
		_, err := f.middleware(claim.Config{Logger: silent})(rejects)(msg)
		require.NoError(t, err)
		other := f.middleware(claim.Config{Logger: silent, Consumer: func(string) string { return "bill" }})
		_, err = other(failing(errOops))(msg)
		require.ErrorIs(t, err, errOops)
		require.NoError(t, d.Rejected())
		assert.Equal(t, 1, f.count(`claim_failed where state = 'dead'`), "one of the two")
		assert.Equal(t, 1, f.count(`claim_failed where state = 'nacked' and attempts = 1`))
	})
}

// A handler whose transaction conflicts each time is at fault itself. Conflicts that end are forgiven.
func TestEventThatAlwaysConflicts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.middleware(claim.Config{Logger: silent, MaxAttempts: 2})
	others, conflicts := 0, 0
	for f.count(`claim_failed where event_id = 'conflicts' and state = 'dead'`) == 0 {
		conflicts++
		require.Less(t, conflicts, 110)
		msg, _ := deliver(t, "conflicts")
		_, _ = h(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := pgtx.From(msg.Context())
			_, err := tx.Exec(msg.Context(), `do $$ begin raise exception 'mine' using errcode = '40001'; end $$`)
			return nil, err
		})(msg)
		others++
		msg, _ = deliver(t, fmt.Sprint("other ", others))
		_, err := h(f.handler)(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, 102, conflicts, "a hundred are forgiven")
	assert.Equal(t, 1, f.count(`claim_failed where attempts = 2 and error like 'the transaction conflicted with others%'`))
}
