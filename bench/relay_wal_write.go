package main

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-go/millrace/outbox"
)

// logWrites measures what an event in the log costs the producer, with the producers of outboxWrite: the transaction of a service without an
// outbox, and the same with one event, in the log and as a row. One relay runs all the time and publishes the events, on one connection of a
// pool. It is idle before the next turn begins.
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
	inRows, inLog := s.probe, withOutbox{near, s.probe.orders, publisher, "event in the log"}
	inRows.pool, inRows.label = near, "event as a row"
	to := &counter{}
	stop, err := startRelaysOn(ctx, 1, s.env.dsn, s.schema, to, 1, func(cfg *outbox.RelayConfig) { cfg.Store, cfg.PollOnly = outbox.Log, true })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := awaitSlot(ctx, inLog, to); err != nil {
		return nil, err
	}
	if err := errors.Join(settleRelays(ctx, inLog, to), settleRelays(ctx, inRows, to)); err != nil {
		return nil, err
	}
	var entrants []entrant
	for _, p := range []producer{plain{near, s.probe.orders, "no event"}, inLog, inRows} {
		entrants = append(entrants, entrant{p.name(), p.note(), func(ctx context.Context) (float64, error) {
			if err := checkpoint(ctx, s.pool); err != nil {
				return 0, err
			}
			return w.turn(ctx, p, s.env.size.box/5, to.count)
		}})
	}
	return w, w.run(ctx, 2*s.env.size.runs, nil, entrants)
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
