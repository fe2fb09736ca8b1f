package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

// wanted returns the i-th guest's request: one of 20 sailings, with a cabin for each guest.
func wanted(i int) (key string, body, other any) {
	b := booking{Sailing: fmt.Sprintf("2026-07-%02d", 1+i%20), Guest: fmt.Sprintf("guest %d", i), Cabin: fmt.Sprintf("S%d", i/20)}
	better := b
	better.Cabin = "suite"
	return fmt.Sprintf("booking-%d", i), b, better
}

func readState(ctx context.Context, pool *pgxpool.Pool, o options, m *mails) (line string, all bool, err error) {
	var keys, booked, listed, aboard, outbox int
	err = pool.QueryRow(ctx, `select (select count(distinct client_key) from bookings), (select count(*) from bookings),
		(select count(distinct booking_id) from passenger_manifest), (select coalesce(sum(passengers), 0) from sailings),
		(select count(*) from outbox)`).Scan(&keys, &booked, &listed, &aboard, &outbox)
	mailed := m.count()
	return fmt.Sprintf("%d of %d bookings, %d in manifests, %d passengers, %d e-mails, %d in the outbox", keys, o.bookings, listed, aboard, mailed, outbox),
		keys == o.bookings && min(listed, aboard, mailed) >= booked && outbox == 0, err
}

// verdict is the result of the bookings. It is read from the tables and the mailer's records, by code that the services do not share.
type verdict struct {
	wanted, booked int
	guests         *stage.Clients
	untrue         int            // answers with an ID that is no booking of their key
	underway       bool           // the fleet did not reach the other broker
	lost, twice    map[string]int // by effect
}

func (v verdict) good() bool {
	wrong := v.guests.Differing + v.guests.Accepted + v.guests.Waiting + v.untrue
	for _, what := range effects {
		wrong += v.lost[what] + v.twice[what]
	}
	return wrong == 0 && !v.underway
}

// effects are what each booking must have exactly once.
var effects = []string{"bookings", "manifest entries", "passengers", "e-mails"}

func judge(ctx context.Context, pool *pgxpool.Pool, o options, guests *stage.Clients, m *mails) (verdict, error) {
	v := verdict{wanted: o.bookings, guests: guests, lost: map[string]int{}, twice: map[string]int{}}
	count := func(what string, n, want int) {
		v.lost[what] += max(want-n, 0)
		v.twice[what] += max(n-want, 0)
	}
	var (
		key, id     string
		n, embarked int
	)
	perKey, made, unbooked := map[string]int{}, map[string]string{}, m.bookings()
	rows, err := pool.Query(ctx, `select client_key, id, (select count(*) from passenger_manifest m where m.booking_id = b.id),
		(select count(*) from embarkations e where e.booking_id = b.id) from bookings b`)
	if err != nil {
		return v, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&key, &id, &n, &embarked}, func() error {
		v.booked++
		perKey[key]++
		made[id] = key
		count("manifest entries", n, 1)
		count("passengers", embarked, 1)
		count("e-mails", m.of(id), 1)
		delete(unbooked, id)
		return nil
	}); err != nil {
		return v, err
	}
	v.untrue = guests.Untrue(made)
	for _, n := range unbooked { // for a booking that was rolled back
		count("e-mails", n, 0)
	}
	if err := pool.QueryRow(ctx, `select count(*) from passenger_manifest m where not exists (select from bookings b where b.id = m.booking_id)`).Scan(&n); err != nil {
		return v, err
	}
	count("manifest entries", n, 0)
	for i := range o.bookings {
		key, _, _ := wanted(i)
		count("bookings", perKey[key], 1)
	}
	rows, err = pool.Query(ctx, `select passengers, (select count(*) from embarkations e where e.sailing = s.sailing) from sailings s`)
	if err != nil {
		return v, err
	}
	_, err = pgx.ForEachRow(rows, []any{&n, &embarked}, func() error { count("passengers", n, embarked); return nil })
	return v, err
}

func (v verdict) print(t stage.Table, o options, cast *stage.Cast) {
	fmt.Fprintln(t.Out)
	t.Line("requests", "%d wanted, %d made, %d keys answered", v.wanted, v.booked, len(v.guests.Answers))
	t.Line("requests repeated", "%d", v.guests.Repeated)
	t.Line("keys used again", "%d refused, %d accepted", v.guests.Refused, v.guests.Accepted)
	t.Line("handler runs", "%d", cast.Counts.Get("deliveries"))
	t.Kills(cast.Kills, "instance")
	if o.migrate {
		t.Line("the other broker", "%s", map[bool]string{false: "reached", true: "not reached"}[v.underway])
	}
	t.Line("other answers", "%d", v.guests.Differing)
	t.Line("untrue answers", "%d", v.untrue)
	t.Line("without an answer", "%d", v.guests.Waiting)
	for _, what := range effects {
		t.Line(what, "%d lost, %d too many", v.lost[what], v.twice[what])
	}
	switch {
	case v.good():
		t.Line("verdict", "every booking was made, listed, counted and confirmed once")
	case o.without != "" && v.guests.Waiting == 0:
		t.Line("verdict", "this is what happens without the %s", o.without)
	default:
		t.Line("verdict", "FAILED")
	}
}
