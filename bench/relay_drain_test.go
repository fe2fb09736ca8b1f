package main

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// Each contestant does the whole work, and so does the check that every timed run makes of it.
func TestEachContestantPublishesEveryEventOnce(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	contestants := []drainer{
		millrace{}, skipLocked{}, singleSelect{}, oagudo{}, watermillSQL{batch: 1000}, watermillForwarder{watermillSQL{batch: 1000}},
	}
	for _, d := range contestants {
		t.Run(d.name(), func(t *testing.T) {
			t.Parallel()
			events := newBacklog(2345) // no multiple of a batch
			require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
				require.NoError(t, d.create(t.Context(), pool, schema))
				require.NoError(t, writeAll(t.Context(), pool, d, schema, events))
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				to := newSink(len(events), cancel)
				require.NoError(t, d.drain(ctx, pool, schema, to))
				require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded)

				var want []string
				for _, e := range events {
					want = append(want, e.id)
				}
				assert.ElementsMatch(t, want, to.ids)
				left, err := d.left(t.Context(), pool, schema)
				assert.Zero(t, left)
				return err
			}))
		})
	}
}

// forgetful publishes everything and records nothing.
type forgetful struct{ millrace }

func (f forgetful) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	return singleSelect(f).drain(ctx, pool, schema, to)
}

// hasty records everything and publishes nothing.
type hasty struct{ millrace }

func (h hasty) drain(ctx context.Context, pool *pgxpool.Pool, schema string, _ *sink) error {
	_, err := pool.Exec(ctx, `delete from `+h.table(schema))
	return err
}

// A contestant that does half the work gets no figure.
func TestHalfTheWorkIsAnError(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	for name, test := range map[string]struct {
		trial
		want string
	}{
		"nothing recorded":            {trial{drainer: forgetful{}}, "1500 published events are not recorded"},
		"nothing published":           {trial{drainer: hasty{}}, "published 0 events"},
		"watermill-sql, offset stays": {trial{drainer: forgetfulWatermill{watermillSQL{batch: 1000}}}, "1500 published events are not recorded"},
		"nothing in the time box":     {trial{drainer: idle{}, box: 10 * time.Millisecond}, "published 0 events"},
		"twice in the time box":       {trial{drainer: stuttering{}, box: 10 * time.Millisecond}, "published 2 events with 1 IDs in the time box"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.events = newBacklog(1500)
			_, err := test.run(t.Context(), dsn)
			require.ErrorContains(t, err, test.want)
		})
	}
}

// forgetfulWatermill publishes everything and keeps its offset where it was.
type forgetfulWatermill struct{ watermillSQL }

func (f forgetfulWatermill) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	if err := f.watermillSQL.drain(ctx, pool, schema, to); err != nil {
		return err
	}
	_, err := pool.Exec(context.WithoutCancel(ctx), `update `+f.offsets(schema)+` set offset_acked = 0, last_processed_transaction_id = '0'`)
	return err
}

// idle does nothing, and stuttering publishes one event twice.
type (
	idle       struct{ millrace }
	stuttering struct{ millrace }
)

func (idle) drain(ctx context.Context, _ *pgxpool.Pool, _ string, _ *sink) error {
	<-ctx.Done()
	return nil
}

func (s stuttering) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	var id string
	if err := pool.QueryRow(context.WithoutCancel(ctx), `select event_id from `+s.table(schema)+` limit 1`).Scan(&id); err != nil {
		return err
	}
	_ = to.Publish(topic, message.NewMessage(id, nil), message.NewMessage(id, nil))
	<-ctx.Done()
	return nil
}

func TestSinkCheck(t *testing.T) {
	t.Parallel()
	events := []event{{id: "a"}, {id: "b"}}
	for name, test := range map[string]struct {
		ids []string
		ok  bool
	}{
		"each once":     {[]string{"b", "a"}, true},
		"one missing":   {[]string{"a"}, false},
		"one twice":     {[]string{"a", "a"}, false},
		"one too often": {[]string{"a", "b", "b"}, false},
		"a foreign one": {[]string{"a", "c"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.ok, (&sink{ids: test.ids}).check(events) == nil)
		})
	}
}
