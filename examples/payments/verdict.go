package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

func readState(ctx context.Context, pool *pgxpool.Pool, o options) (line string, all bool, err error) {
	var made, balance, points, outbox int
	err = pool.QueryRow(ctx, `select (select count(distinct client_key) from payments),
		(select count(*) from payments p where exists (select from bookings b where b.payment_id = p.id and b.book = 'balance')),
		(select count(*) from payments p where exists (select from bookings b where b.payment_id = p.id and b.book = 'points')),
		(select count(*) from outbox)`).Scan(&made, &balance, &points, &outbox)
	return fmt.Sprintf("%d of %d payments made, %d in balances, %d in points, %d in the outbox", made, o.payments, balance, points, outbox),
		made == o.payments && min(balance, points) >= o.payments && outbox == 0, err
}

// books are the books that each payment is entered in.
var books = []string{"balance", "points"}

// verdict is the result of the payments, read from the tables by SQL that shares no code with the services.
type verdict struct {
	wanted, made, answered int
	lost                   int // keys that were never answered, or whose answer names a payment that is missing
	paidTwice              int // keys with several payments
	differing              int // answers that differ from the first one for their key
	accepted, refused      int // keys that came again with another body
	waiting                int // requests without an answer at the end
	repeated               int
	late, missed           int // deliveries of events that were published again, and those that did not come
	books                  []book
}

// book is balance or points.
type book struct {
	name           string
	missing, twice int   // payments
	cents, off     int64 // the sum of the accounts, and its difference from what was paid
}

func (v verdict) good() bool {
	wrong := v.lost + v.paidTwice + v.differing + v.accepted + v.waiting + v.missed
	for _, b := range v.books {
		wrong += b.missing + b.twice
		if b.off != 0 {
			wrong++
		}
	}
	return wrong == 0
}

func judge(ctx context.Context, pool *pgxpool.Pool, o options, c *stage.Clients, l late) (verdict, error) {
	v := verdict{
		wanted: o.payments, answered: len(c.Answers), differing: c.Differing, accepted: c.Accepted, refused: c.Refused,
		repeated: c.Repeated, waiting: c.Waiting, lost: o.payments - len(c.Answers), late: l.want, missed: l.want - l.came(),
	}
	perKey, made := map[string]int{}, map[string]string{}
	rows, err := pool.Query(ctx, `select id, client_key from payments`)
	if err != nil {
		return v, err
	}
	var id, key string
	if _, err := pgx.ForEachRow(rows, []any{&id, &key}, func() error { perKey[key]++; made[id] = key; v.made++; return nil }); err != nil {
		return v, err
	}
	v.lost += c.Untrue(made)
	for _, n := range perKey {
		if n > 1 {
			v.paidTwice++
		}
	}
	for _, name := range books {
		b := book{name: name}
		err := pool.QueryRow(ctx, `select count(*) filter (where n = 0), count(*) filter (where n > 1),
				(select coalesce(sum(`+name+`), 0) from accounts), (select coalesce(sum(`+name+`), 0) from accounts) - sum(cents)
			from (select p.cents, (select count(*) from bookings b where b.payment_id = p.id and b.book = $1) as n from payments p) per_payment`, name).
			Scan(&b.missing, &b.twice, &b.cents, &b.off)
		if err != nil {
			return v, err
		}
		v.books = append(v.books, b)
	}
	return v, nil
}

func (v verdict) print(t stage.Table, o options, cast *stage.Cast) {
	fmt.Fprintln(t.Out)
	t.Line("payments", "%d wanted, %d made, %d keys answered", v.wanted, v.made, v.answered)
	t.Line("requests repeated", "%d", v.repeated)
	t.Line("keys used again", "%d refused, %d accepted", v.refused, v.accepted)
	t.Line("deliveries", "%d, of which %d booked", cast.Counts.Get("deliveries"), cast.Counts.Get("booked"))
	t.Line("late deliveries", "%d of %d", v.late-v.missed, v.late)
	t.Kills(cast.Kills, killable...)
	t.Line("lost", "%d", v.lost)
	t.Line("paid twice", "%d", v.paidTwice)
	t.Line("other answers", "%d", v.differing)
	t.Line("without an answer", "%d", v.waiting)
	for _, b := range v.books {
		t.Line(b.name, "%d missing, %d booked twice; accounts hold %d cents, off by %d", b.missing, b.twice, b.cents, b.off)
	}
	switch {
	case v.good() && o.window > 0:
		t.Line("verdict", "nothing came twice, by luck: Redis alone does not promise it")
	case v.good():
		t.Line("verdict", "every payment was made, answered and booked once")
	case o.window > 0 && v.books[0].twice+v.waiting+v.missed == 0:
		t.Line("verdict", "this is what a window of %v lets through: what comes later is booked again", o.window)
	case o.without != "" && v.waiting+v.missed == 0:
		t.Line("verdict", "this is what happens without the %s", o.without)
	default:
		t.Line("verdict", "FAILED")
	}
}
