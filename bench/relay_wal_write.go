package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/outbox"
)

// logWrites measures what an event in the log costs the producer, as outboxWrite does: the transaction of a service without an outbox, and the
// same with one event, in the log and as a row. No relay runs meanwhile. Behind each turn one makes rows of the events in the log and
// publishes them: as many as there were commits.
func (s *sources) logWrites(ctx context.Context) (w *writes, err error) {
	w = &writes{rounds: rounds{env: s.env, unit: "tx/s"}, pool: s.pool, schema: s.schema}
	near, err := openPool(ctx, s.env.dsn, producers, 0)
	if err != nil {
		return nil, err
	}
	defer near.Close()
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s.schema, Store: outbox.Log})
	if err != nil {
		return nil, err
	}
	inRows, inLog := s.probe, intoLog{withOutbox{near, s.probe.orders, publisher, "event in the log"}}
	inRows.pool, inRows.label = near, "event as a row"
	if err := s.landAll(ctx, func(to *counter) error { return awaitSlot(ctx, inLog.withOutbox, to) }); err != nil {
		return nil, err
	}
	var entrants []entrant
	for _, p := range []producer{plain{near, s.probe.orders, "no event"}, inLog, inRows} {
		measure := func(ctx context.Context) (rate float64, err error) {
			if _, err := s.pool.Exec(ctx, `truncate `+inLog.orders.table()+`, `+inRows.table(s.schema)); err != nil {
				return 0, err
			}
			if err := checkpoint(ctx, s.pool); err != nil {
				return 0, err
			}
			before, err := committed(ctx, s.pool, inLog, s.schema)
			if err == nil {
				rate, err = w.turn(ctx, p, s.env.size.box/5, none)
			}
			if err != nil || p != producer(inLog) {
				return rate, err
			}
			after, err := committed(ctx, s.pool, inLog, s.schema)
			if err != nil {
				return 0, err
			}
			return rate, s.landAll(ctx, func(to *counter) error { return await(to, after.rows-before.rows) })
		}
		if _, err := measure(ctx); err != nil { // connections, prepared statements, pages
			return nil, err
		}
		entrants = append(entrants, entrant{p.name(), p.note(), measure})
	}
	return w, w.run(ctx, 2*s.env.size.runs, nil, entrants)
}

// intoLog is a producer whose events are in no table.
type intoLog struct{ withOutbox }

func (intoLog) table(string) string { return "" }

// landAll runs a relay that publishes the events in the log until done returns.
func (s *sources) landAll(ctx context.Context, done func(to *counter) error) error {
	to := &counter{}
	stop, err := startRelaysOn(ctx, 1, s.env.dsn, s.schema, to, 1, func(cfg *outbox.RelayConfig) { cfg.Store, cfg.PollOnly = outbox.Log, true })
	if err != nil {
		return err
	}
	return errors.Join(done(to), stop())
}

// await returns once n events were published.
func await(to *counter, n int) error {
	for deadline := time.Now().Add(recordTimeout); to.count() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("of %d events in the log %d were published", n, to.count())
		}
	}
	return nil
}

// awaitSlot returns once the relay has its slot and publishes an event: until then events for the log are refused.
func awaitSlot(ctx context.Context, p withOutbox, to *counter) error {
	err := outbox.ErrNoLog
	for deadline := time.Now().Add(recordTimeout); err != nil || to.count() == 0; time.Sleep(10 * time.Millisecond) {
		if errors.Is(err, outbox.ErrNoLog) {
			err = p.commit(ctx, 0, newBacklog(1)[0])
		}
		if err != nil && !errors.Is(err, outbox.ErrNoLog) || time.Now().After(deadline) {
			return errors.Join(errors.New("the relay publishes no event of the log"), err)
		}
	}
	return nil
}
