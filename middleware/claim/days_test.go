package claim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

const day = 24 * time.Hour

// mintedAt returns an event ID that was minted at that time from now.
func mintedAt(fromNow time.Duration) string {
	id := uuid.Must(uuid.NewV7())
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().Add(fromNow).UnixMilli()))
	copy(id[:6], ms[2:])
	return id.String()
}

// today is the partition of that many days from now.
func (f *fixture) today(days int) string {
	return f.schema + ".processed_" + time.Now().UTC().AddDate(0, 0, days).Format("20060102")
}

// midnight leaves yesterday as the last day: nobody has made today.
func (f *fixture) midnight() {
	for n := range 8 {
		f.exec(`drop table ` + f.today(n))
	}
}

func (f *fixture) retain() claim.Retained {
	r, err := claim.Retain(context.Background(), f.pool, f.schema, day)
	require.NoError(f.t, err)
	return r
}

// settles claims the event, which must not be settled before, and is a duplicate then.
func (f *fixture) settles(ctx context.Context, key claim.Key) {
	ran := false
	do := func(context.Context) error { ran = true; return nil }
	require.NoError(f.t, f.store.Do(ctx, key, do))
	require.True(f.t, ran)
	require.ErrorIs(f.t, f.store.Do(ctx, key, do), claim.ErrCompleted)
}

// refuses claims the event, whose handler must not be called.
func (f *fixture) refuses(key claim.Key, want error) {
	f.t.Helper()
	require.ErrorIs(f.t, f.store.Do(f.t.Context(), key, func(context.Context) error {
		f.t.Error("the handler was called")
		return nil
	}), want)
}

// Where the records of all kinds of IDs lie.
func TestRecordsLieInTheirDay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	minted := time.Now().Add(-40 * day)
	for table, key := range map[string]claim.Key{
		f.today(0):                     {EventID: mintedAt(0)},
		f.today(7):                     {EventID: mintedAt(7 * day)},
		f.schema + ".processed_old":    {EventID: mintedAt(-1000 * day)},
		f.schema + ".processed_hashed": {EventID: "order 1"},
		f.today(-1):                    {EventID: mintedAt(time.Until(minted)), Due: time.Now().Add(-day)},
	} {
		key.Consumer = "labour/notify"
		f.settles(t.Context(), key)
		var n int
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n))
		assert.Equal(t, 1, n, table)
	}
}

// Once the days before are dropped, nobody knows what was processed in them.
func TestWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	processed, unseen, recent := mintedAt(-10*day), mintedAt(-10*day), mintedAt(-time.Minute)
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: processed})
	f.settles(t.Context(), claim.Key{Consumer: "labour/bill", EventID: recent})
	r := f.retain()
	assert.Equal(t, []string{"processed_old"}, r.Days)
	assert.Equal(t, time.Now().UTC().Truncate(day).Add(-day), r.Floor.UTC(), "the end of the last day that was dropped")

	for _, consumer := range []string{"labour/notify", "labour/bill"} {
		f.refuses(claim.Key{Consumer: consumer, EventID: processed}, claim.ErrTooOld)
		f.refuses(claim.Key{Consumer: consumer, EventID: unseen}, claim.ErrTooOld)
	}
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: recent})
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: unseen, Due: time.Now()})
	assert.Empty(t, f.retain().Days, "there is no more to drop")

	// An operator vouches for it. Its record, among the hashes, absorbs redeliveries that nobody vouches for.
	f.settles(claim.WithProof(t.Context()), claim.Key{Consumer: "labour/notify", EventID: unseen})
	f.refuses(claim.Key{Consumer: "labour/notify", EventID: unseen}, claim.ErrCompleted)
	f.refuses(claim.Key{Consumer: "labour/bill", EventID: unseen}, claim.ErrTooOld)
}

// The floor is there and the day is too: retention was interrupted in between. Its records still count.
func TestRecordBelowTheFloorCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	processed := claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}
	f.settles(t.Context(), processed)
	f.exec(`update ` + f.schema + `.consumer set floor = now() - interval '5 days'`)
	f.refuses(processed, claim.ErrCompleted)
	require.ErrorIs(t, f.store.Do(claim.WithProof(t.Context()), processed, nil), claim.ErrCompleted)
	f.refuses(claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}, claim.ErrTooOld)
}

// A consumer that comes after days were dropped may process what is older: it never has. Later drops bind it too.
func TestLateConsumerIsNotBound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	f.retain()
	old := mintedAt(-100 * day)
	f.refuses(claim.Key{Consumer: "labour/notify", EventID: old}, claim.ErrTooOld)
	f.settles(t.Context(), claim.Key{Consumer: "analyse", EventID: old})
	f.settles(t.Context(), claim.Key{Consumer: "analyse", EventID: mintedAt(0)})

	f.exec(`update ` + f.schema + `.consumer set floor = now() - interval '12 hours'`)
	f.refuses(claim.Key{Consumer: "analyse", EventID: old}, claim.ErrCompleted)
	f.refuses(claim.Key{Consumer: "analyse", EventID: mintedAt(-100 * day)}, claim.ErrTooOld)
}

// Days were dropped before there was any consumer: the first one has processed nothing of them.
func TestFirstConsumerIsNotBound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.retain()
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)})
	k, err := claim.InspectKept(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	require.Len(t, k.Consumers, 1)
	assert.Equal(t, "labour/notify", k.Consumers[0].Name)
}

// One that comes between the floor and the drop must not leave a record in the day that goes.
func TestConsumerThatComesDuringRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	done := f.retaining()
	late := claim.Key{Consumer: "analyse", EventID: mintedAt(-10 * day)}
	f.settles(t.Context(), late)
	require.NoError(t, end(nil))
	require.NoError(t, <-done)
	f.refuses(late, claim.ErrCompleted)
}

// retaining begins retention, which waits for the end of a running claim once it returns.
func (f *fixture) retaining() (done chan error) {
	done = make(chan error, 1)
	go func() {
		_, err := claim.Retain(context.Background(), f.pool, f.schema, day)
		done <- err
	}()
	require.Eventually(f.t, func() bool {
		var waits bool
		err := f.pool.QueryRow(context.Background(), `select exists (select from pg_inherits where inhparent = $1::regclass and inhdetachpending)`,
			f.schema+".processed").Scan(&waits)
		return err == nil && waits
	}, time.Minute, 5*time.Millisecond)
	return done
}

// A prototype dropped days under a lock that queued behind a handler of 4 s, and every claim queued behind the lock.
func TestRetentionBesideALongHandlerBlocksNoClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`drop table ` + f.today(7)) // a day is made, too
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	done := f.retaining()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 20 {
		f.settles(ctx, claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
		f.settles(ctx, claim.Key{Consumer: "labour/bill", EventID: mintedAt(7 * day)})
		f.settles(ctx, claim.Key{Consumer: "labour/bill", EventID: outbox.NewID() + "?"})
	}
	select {
	case err := <-done:
		t.Errorf("retention did not wait for the handler: %v", err)
	default:
	}
	require.NoError(t, end(nil))
	require.NoError(t, <-done)
	f.refuses(claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}, claim.ErrTooOld)
}

// The process that drops a day is killed in the middle.
func TestInterruptedRetentionIsFinished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}
	f.settles(t.Context(), old)
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	done := f.retaining()
	require.Eventually(t, func() bool {
		tag, err := f.pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
			where query like 'alter table%detach%' and query like '%' || $1 || '%' and state = 'active'`, f.schema)
		return err == nil && tag.RowsAffected() > 0
	}, time.Minute, 5*time.Millisecond)
	assert.Error(t, <-done)
	require.NoError(t, end(nil))
	f.refuses(old, claim.ErrTooOld)
	r := f.retain()
	assert.Equal(t, []string{"processed_old"}, r.Days)
	f.refuses(old, claim.ErrTooOld)
}

func TestEventFromTheFuture(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := claim.Key{Consumer: "labour/notify", EventID: mintedAt(30 * day)}
	f.refuses(key, claim.ErrClock)
	f.refuses(key, claim.ErrClock)
	f.settles(claim.WithProof(t.Context()), key)
	f.refuses(key, claim.ErrCompleted)
}

// A producer's clock is ahead. An operator replays or discards the event; weeks later its day is made, and the broker delivers
// the event again: it must not run then.
func TestEventFromTheFutureWhoseDayComes(t *testing.T) {
	t.Parallel()
	dead := func(f *fixture, id string) {
		f.delivered(id)
		require.Equal(f.t, "clock", f.failed()[0].Reason)
	}
	replayed := func(f *fixture, id string) {
		dead(f, id)
		f.replayAll(deadletter.Selection{})
		f.serve(f.broker(), claim.Config{}, f.take)
		f.eventually(func() bool { return len(f.failed()) == 0 }, "the event was replayed")
	}
	for name, c := range map[string]struct {
		settle func(f *fixture, id string)
		runs   int
	}{
		"replayed": {replayed, 1},
		"replayed, and its hash is pruned": {func(f *fixture, id string) {
			replayed(f, id)
			f.exec(`delete from ` + f.schema + `.processed_hashed`)
		}, 1},
		"discarded": {func(f *fixture, id string) {
			dead(f, id)
			_, err := deadletter.Discard(context.Background(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "ada"})
			require.NoError(f.t, err)
		}, 0},
		"nobody has decided": {dead, 0},
		"control: a hash alone, replayed": {func(f *fixture, id string) {
			replayed(f, id)
			f.exec(`delete from ` + f.schema + `.processed_ahead`)
		}, 2},
		"control: a hash alone, discarded": {func(f *fixture, id string) {
			dead(f, id)
			_, err := deadletter.Discard(context.Background(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "ada"})
			require.NoError(f.t, err)
			f.exec(`delete from ` + f.schema + `.processed_ahead`)
		}, 1},
		"vouched for": {func(f *fixture, id string) {
			require.NoError(f.t, f.store.Do(claim.WithProof(context.Background()), claim.Key{Consumer: "labour/notify", EventID: id}, func(ctx context.Context) error {
				return f.effect(ctx, id)
			}))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, id := newFixture(t), mintedAt(30*day)
			c.settle(f, id)
			f.exec(`select ` + f.schema + `.processed_days(31)`)
			f.delivered(id)
			assert.Equal(t, c.runs, f.effects()[id])
			assert.Zero(t, f.count("processed_ahead"), "the day has it")
		})
	}
}

// delivered delivers the event once, which has one attempt.
func (f *fixture) delivered(id string) {
	msg, _ := deliver(f.t, id)
	_, err := f.middleware(claim.Config{Logger: silent, MaxAttempts: 1})(f.handler)(msg)
	require.NoError(f.t, err)
}

// A consumer's role makes days and cannot drop any; its housekeeping leaves that to the owner.
func TestRetentionByAnotherRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.schema + "_r"
	grants, err := claim.Grants(f.schema, claim.GrantRoles{Consumer: role})
	require.NoError(t, err)
	f.exec(`create role ` + role)
	t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	f.exec(grants)
	other := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	f.midnight()
	f.store = claim.NewPostgresStore(other, claim.Schema(f.schema))
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	f.exec(`drop table ` + f.today(7))
	_, err = claim.Retain(t.Context(), other, f.schema, day)
	require.ErrorIs(t, err, pgdays.ErrNotOwner)
	require.ErrorContains(t, err, `"millrace retention run"`)
	assert.Zero(t, f.count("consumer where floor is not null"), "nobody is bound by what was not dropped")
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(7 * day)})

	require.NoError(t, f.housekeep("labour", 10000*day), "the owner will come")
	f.exec(`delete from ` + f.schema + `.processed_retention`)
	f.exec(`drop table ` + f.schema + `.processed_old`)
	f.exec(fmt.Sprintf(`create table %s partition of %s.processed for values from (minvalue) to ('%s')`, f.schema+".processed_old", f.schema, boundOf(t, -30)))
	require.ErrorIs(t, f.housekeep("labour", 20*day), pgdays.ErrNotOwner, "the owner has not come")
	f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	require.NoError(t, f.housekeep("labour", 20*day))
	f.store = claim.NewPostgresStore(other, claim.Schema(f.schema))
	require.NoError(t, f.housekeep("labour", 20*day))
}

func TestRetentionRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.Retain(t.Context(), f.pool, f.schema, time.Hour)
	require.ErrorContains(t, err, "keep is 1h0m0s: want 24h0m0s or more")
	_, err = claim.Retain(t.Context(), f.pool, "Big", day)
	require.ErrorContains(t, err, `Schema is "Big"`)
	_, err = claim.New(f.store, claim.Config{Service: "labour", Retention: 6 * day})
	require.ErrorContains(t, err, "Retention is 144h0m0s, and RedeliveryHorizon 168h0m0s")
	_, err = claim.New(f.store, claim.Config{Service: "labour", Retention: time.Hour, RedeliveryHorizon: -1})
	require.ErrorContains(t, err, "Config.Retention is 1h0m0s: want 24h0m0s or more")
	require.ErrorContains(t, err, "Config.RedeliveryHorizon is -1ns")
	require.NoError(t, claim.CheckWindow(day, day))
}

// What cannot be proved new is a dead letter, and its redeliveries are absorbed; so is what is from the future, in the end.
func TestOutsideOfTheWindowIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	f.retain()
	reasons := map[string]string{mintedAt(-10 * day): "window", mintedAt(30 * day): "clock"}
	for id := range reasons {
		for range 2 {
			msg, _ := deliver(t, id)
			_, err := f.middleware(claim.Config{Logger: silent, MaxAttempts: 1})(f.handler)(msg)
			require.NoError(t, err)
		}
	}
	assert.Empty(t, f.effects())
	for _, row := range f.failed() {
		assert.Equal(t, "dead "+reasons[row.EventID], row.State+" "+row.Reason)
		delete(reasons, row.EventID)
	}
	assert.Empty(t, reasons)
	assert.Equal(t, 2, f.count("processed_hashed"))

	old := mintedAt(-10 * day)
	msg, _ := deliver(t, old)
	_, err := f.middleware(claim.Config{RunTooOld: true})(f.handler)(msg)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{old: 1}, f.effects(), "a setting runs it")
}

// A producer, a proxy or an operator spells a UUID in capital letters. It is one event, whatever happened to its deliveries.
func TestTwoSpellings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		minted time.Duration
		cfg    claim.Config
		first  error // of the first delivery
		want   map[string]int
	}{
		"processed":         {0, claim.Config{}, nil, map[string]int{"": 1}},
		"failed once":       {0, claim.Config{MaxAttempts: 3}, errOops, map[string]int{"": 1}},
		"dead":              {0, claim.Config{MaxAttempts: 1}, errOops, map[string]int{}},
		"run, though old":   {-10 * day, claim.Config{RunTooOld: true}, nil, map[string]int{"": 1}},
		"old and failed":    {-10 * day, claim.Config{RunTooOld: true, MaxAttempts: 3}, errOops, map[string]int{"": 1}},
		"old and dead":      {-10 * day, claim.Config{RunTooOld: true, MaxAttempts: 1}, errOops, map[string]int{}},
		"no time in the ID": {1, claim.Config{}, nil, map[string]int{"": 1}},
		// The controls: what is no UUID has no second spelling.
		"two events, processed":   {2, claim.Config{}, nil, map[string]int{"": 2}},
		"two events, failed once": {2, claim.Config{MaxAttempts: 3}, errOops, map[string]int{"": 2}},
		"two events, one dead":    {2, claim.Config{MaxAttempts: 1}, errOops, map[string]int{"": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, id := newFixture(t), mintedAt(c.minted)
			if c.minted == 1 {
				id = uuid.NewString()
			}
			if c.minted == 2 {
				id = "event"
			}
			f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
			f.retain()
			c.cfg.Logger = silent
			guard := f.middleware(c.cfg)
			failure := c.first
			for _, spelt := range []string{strings.ToUpper(id), id, strings.ToUpper(id), id} {
				msg, _ := deliver(t, spelt)
				_, _ = guard(func(msg *message.Message) ([]*message.Message, error) {
					want := id
					if c.minted == 2 {
						want = spelt
					}
					assert.Equal(t, want, msg.UUID, "in an effect's key it is one event, too")
					if err := failure; err != nil {
						failure = nil
						return nil, err
					}
					return nil, f.effect(msg.Context(), "")
				})(msg)
			}
			assert.Equal(t, c.want, f.effects())
		})
	}
}
