package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

const (
	// deadTopic is one whose right is revoked: the broker takes none of its events.
	deadTopic = "order.forbidden"
	// warmRows of each shard are forwarded before the clock starts.
	warmRows = 200
	// liveTimeout ends a turn that does not get on.
	liveTimeout = time.Minute
)

// live is an outbox in which a backlog is committed at once while a relay runs.
type live struct {
	dsn, schema string
	pool        *pgxpool.Pool
	kept        string // the table of an outbox that keeps the events
	events      []event
}

// addDeadTopic adds as many events of the dead topic as there are others, of keys of their own.
func (l live) addDeadTopic(ctx context.Context) error {
	return l.commit(ctx, `select shard, 'dead-' || event_id, '`+deadTopic+`', 'dead-' || shard, headers, payload from `+l.kept+` order by seq`, len(l.events))
}

// commit adds rows and tells the relay.
func (l live) commit(ctx context.Context, rows string, want int) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into `+l.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
			select shard, `+l.schema+`.outbox_next(shard), event_id, topic, key, headers, payload
			from (`+rows+`) as e (shard, event_id, topic, key, headers, payload)`)
		if err == nil && int(tag.RowsAffected()) != want {
			err = fmt.Errorf("committed %d rows: want %d", tag.RowsAffected(), want)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `select pg_notify($1, '')`, l.schema+"_outbox")
		}
		return err
	})
}

// settle is settle for the table.
func (l live) settle(ctx context.Context) error { return settle(ctx, l.pool, l.schema+".outbox") }

// turn starts a relay with its defaults and lets it forward some events. Then it commits the others and returns how many of
// them it forwards in a second, from the first to the last. Each is published once, none is left, and nothing of the dead
// topic is lost.
func (l live) turn(ctx context.Context) (rate float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	dead, err := l.rows(ctx, deadTopic)
	if err != nil {
		return 0, err
	}
	to := &refusing{}
	forward := func(rows string, want int) (*sink, error) {
		done := make(chan struct{})
		s := newSink(want, func() { close(done) })
		to.sink.Store(s)
		if err := l.commit(ctx, rows, want); err != nil {
			return nil, err
		}
		select {
		case <-done:
			return s, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d events were published: %w", s.count(), want, ctx.Err())
		}
	}
	to.sink.Store(newSink(0, func() {}))
	stop, err := startRelays(ctx, l.dsn, l.schema, to, 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	const columns = `select shard, event_id, topic, key, headers, payload from `
	var warm int
	if err := l.pool.QueryRow(ctx, `select count(*) from `+l.kept+` where seq <= $1`, warmRows).Scan(&warm); err != nil {
		return 0, err
	}
	if _, err := forward(fmt.Sprintf(`%s %s where seq <= %d order by seq`, columns, l.kept, warmRows), warm); err != nil {
		return 0, err
	}
	if err := l.drained(ctx); err != nil {
		return 0, err
	}
	s, err := forward(columns+l.kept+` order by seq`, len(l.events))
	if err != nil {
		return 0, err
	}
	if err := errors.Join(l.drained(ctx), s.check(l.events)); err != nil {
		return 0, err
	}
	if still, err := l.rows(ctx, deadTopic); err != nil || still != dead {
		return 0, errors.Join(err, fmt.Errorf("%d events of the dead topic are left of %d", still, dead))
	}
	return s.rate(), nil
}

func (l live) rows(ctx context.Context, of string) (n int, err error) {
	err = l.pool.QueryRow(ctx, `select count(*) from `+l.schema+`.outbox where topic = $1`, of).Scan(&n)
	return n, err
}

// drained returns once what was published is deleted.
func (l live) drained(ctx context.Context) error {
	for {
		n, err := l.rows(ctx, topic)
		if err != nil || n == 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// refusing is a broker that takes everything but the dead topic.
type refusing struct{ sink atomic.Pointer[sink] }

// PublishBatch refuses every message of the dead topic.
func (r *refusing) PublishBatch(ctx context.Context, to string, msgs []*message.Message) []error {
	if to != deadTopic {
		return r.sink.Load().PublishBatch(ctx, to, msgs)
	}
	errs := make([]error, len(msgs))
	for i := range errs {
		errs[i] = fmt.Errorf("%w: permission denied", transport.ErrUnavailable)
	}
	return errs
}

// Publish is PublishBatch.
func (r *refusing) Publish(to string, msgs ...*message.Message) error {
	return errors.Join(r.PublishBatch(context.Background(), to, msgs)...)
}

// Close does nothing.
func (*refusing) Close() error { return nil }
