package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
)

const (
	ofRelayLive   = "relay, running"
	ofRelayBeside = "relay, beside a dead topic"
)

// addDeadTopic compares what a running relay forwards beside a dead topic, which has as many events as are forwarded, with
// what it forwards without. The two take turns.
func (s *drains) addDeadTopic(ctx context.Context, pairs int) error {
	from, ok := s.depot.find(millrace{}, s.rows)
	if !ok {
		return errors.New("the usual backlog is not kept")
	}
	return withSchema(ctx, s.dsn, func(pool *pgxpool.Pool, schema string) error {
		return withSchema(ctx, s.dsn, func(_ *pgxpool.Pool, other string) error {
			without := live{dsn: s.dsn, pool: pool, schema: schema, kept: millrace{}.table(from.schema), events: s.rows}
			with := without
			with.schema = other
			err := errors.Join(outbox.Migrate(ctx, pool, schema), outbox.Migrate(ctx, pool, other))
			if err == nil {
				err = with.addDeadTopic(ctx)
			}
			if err != nil {
				return fmt.Errorf("fill the tables: %w", err)
			}
			r := rounds{env: s.env, unit: "rows/s"}
			settled := func(ctx context.Context) error { return errors.Join(without.settle(ctx), with.settle(ctx)) }
			err = r.run(ctx, pairs, settled, []entrant{
				{name: ofRelayLive, note: "one outbox.Relay with its defaults that runs when the backlog is committed, from its first event to its last", measure: without.turn},
				{name: ofRelayBeside, note: "the same beside as many events of a topic that the broker refuses", measure: with.turn},
			})
			for _, one := range r.series {
				s.series[one.name] = one
			}
			return err
		})
	})
}
