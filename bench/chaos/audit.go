package chaos

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The classes of findings.
const (
	lost      = "lost"      // it was accepted, and has not had its effect; nothing holds it any more
	doubled   = "doubled"   // it had its effect twice
	invented  = "invented"  // it had an effect and was never accepted
	overtaken = "overtaken" // a later one of its key came before it
	inDoubt   = "in doubt"  // nobody knows whether it had its effect
	stuck     = "stuck"     // something still holds it when all is quiet
	accused   = "accused"   // it counts as broken, although only its surroundings were
)

var classes = []string{lost, doubled, invented, overtaken, inDoubt, stuck, accused}

// finding is something that must not be.
type finding struct {
	Class string    `json:"class"`
	What  string    `json:"what"`
	At    time.Time `json:"at"` // when it was accepted
}

// question is SQL that returns a row for each finding: what is said, and when.
type question struct{ class, sql string }

// held are the events that are on their way in the database, and those that were given up. The auditor reads the library's
// tables for what waits and what was accused, never for what was done.
const held = `(select event_id from chaos.outbox union select event_id from chaos.outbox_failed
	union select event_id from chaos.outbox_delayed union select event_id from chaos.claim_failed)`

// questions are asked of the business tables.
var questions = []question{
	{doubled, `select 'key ' || client_key || ' made ' || count(*) || ' orders', min(at) from orders group by client_key having count(*) > 1`},
	{doubled, `select 'order ' || order_id || ' was shipped ' || count(*) || ' times', min(at) from shipments group by order_id having count(*) > 1`},
	{doubled, `select 'order ' || order_id || ' was told of ' || count(*) || ' times', min(at) from notices group by order_id having count(*) > 1`},
	{invented, `select 'order ' || order_id || ' was shipped and does not exist', min(at) from shipments s
		where not exists (select from orders o where o.id = s.order_id) group by order_id`},
	{invented, `select 'order ' || order_id || ' was told of and not shipped', min(at) from notices n
		where not exists (select from shipments s where s.order_id = n.order_id) group by order_id`},
	{accused, `select 'event ' || event_id || ' is dead in the outbox: ' || reason, created_at from chaos.outbox_failed where state = 'dead'`},
	{accused, `select 'event ' || event_id || ' is a dead letter: ' || reason || ': ' || error, first_at from chaos.claim_failed where state = 'dead'`},
}

// orderQuestions are asked where the broker keeps the order of a key, also when a process or a connection ends.
var orderQuestions = []question{{overtaken, overtakenIn("shipments")}, {overtaken, overtakenIn("notices")}}

// endQuestions are asked when nothing moves any more.
var endQuestions = []question{
	{stuck, `select 'order ' || id || ' was not shipped, and is held', at from orders o
		where not exists (select from shipments s where s.order_id = o.id) and event_id in ` + held},
	{stuck, `select 'order ' || order_id || ' was not told of, and is held', at from shipments s
		where not exists (select from notices n where n.order_id = s.order_id) and event_id in ` + held},
	{stuck, `select 'event ' || event_id || ' is still in the outbox', created_at from chaos.outbox`},
	{stuck, `select 'event ' || event_id || ' is ' || state || ' in the outbox: ' || reason, created_at from chaos.outbox_failed where state <> 'dead'`},
	{stuck, `select 'event ' || event_id || ' is ' || state || ' at a consumer: ' || error, first_at from chaos.claim_failed where state not in ('dead', 'nacked')`},
	{lost, `select 'order ' || id || ' was not shipped', at from orders o
		where not exists (select from shipments s where s.order_id = o.id) and event_id not in ` + held},
	{lost, `select 'order ' || order_id || ' was not told of', at from shipments s
		where not exists (select from notices n where n.order_id = s.order_id) and event_id not in ` + held},
	{inDoubt, `select 'effect ' || key || ' is ' || state || ': ' || reason, called_at from chaos.effect where state in ('running', 'pending', 'doubt')`},
}

// overtakenIn finds first effects that came after that of a later order of their account.
func overtakenIn(table string) string {
	return `select 'order ' || order_id || ' of ' || account || ' came as number ' || version || ' after number ' || before || ' in ` + table + `', at
		from (select *, max(version) over (partition by account order by id rows between unbounded preceding and 1 preceding) as before
			from (select distinct on (order_id) * from ` + table + ` order by order_id, id) firsts) effects
		where version < before`
}

// audit asks the questions, and compares the orders with what clients were told and with what the provider did.
func (s *system) audit(ctx context.Context, end bool) (found []finding, err error) {
	all := slices.Clone(questions)
	if s.observer == nil {
		all = append(all, orderQuestions...)
	} else {
		found = s.observer.findings()
	}
	if end {
		all = append(all, endQuestions...)
	}
	err = s.admin(ctx, func(conn *pgx.Conn) error {
		for _, q := range all {
			rows, err := conn.Query(ctx, q.sql)
			if err != nil {
				return fmt.Errorf("%s: %w", q.sql, err)
			}
			f := finding{Class: q.class}
			if _, err := pgx.ForEachRow(rows, []any{&f.What, &f.At}, func() error { found = append(found, f); return nil }); err != nil {
				return fmt.Errorf("%s: %w", q.sql, err)
			}
		}
		more, err := s.compare(ctx, conn, end)
		found = append(found, more...)
		return err
	})
	return found, err
}

// compare finds orders that clients were promised and do not exist, and charges that are not one for each order.
func (s *system) compare(ctx context.Context, conn *pgx.Conn, end bool) (found []finding, err error) {
	type made struct {
		key    string
		at     time.Time
		toldOf bool
	}
	orders := map[string]made{}
	rows, err := conn.Query(ctx, `select id::text, client_key, at, exists (select from notices n where n.order_id = o.id) from orders o`)
	if err != nil {
		return nil, err
	}
	var (
		id  string
		one made
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &one.key, &one.at, &one.toldOf}, func() error { orders[id] = one; return nil }); err != nil {
		return nil, err
	}
	add := func(class string, at time.Time, format string, args ...any) {
		found = append(found, finding{Class: class, What: fmt.Sprintf(format, args...), At: at})
	}
	charges, _ := s.provider.log()
	for id, times := range charges {
		order, exists := orders[id]
		if times > 1 {
			add(doubled, order.at, "order %s was charged %d times", id, times)
		}
		if !exists && end {
			add(invented, time.Now(), "order %s was charged and does not exist", id)
		}
	}
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	found = append(found, s.driver.differing...)
	if !end {
		return found, nil
	}
	for id, order := range orders {
		if order.toldOf && charges[id] == 0 {
			add(lost, order.at, "order %s was told of and not charged", id)
		}
	}
	for key, at := range s.driver.sent {
		id, answered := s.driver.answers[key]
		switch {
		case !answered:
			add(stuck, at, "key %s has no answer", key)
		case orders[id].key != key:
			add(lost, at, "key %s was answered with order %s, which does not exist", key, id)
		}
	}
	return found, nil
}

// counts are how far things are.
type counts struct {
	Sent      int `json:"sent"`
	Answered  int `json:"answered"`
	Orders    int `json:"orders"`
	Shipments int `json:"shipments"`
	Notices   int `json:"notices"`
	Charges   int `json:"charges"`
	Judged    int `json:"judged"` // orders whose place among those of their account the auditor has seen
	Held      int `json:"held"`   // events in the outbox, and those that failed
}

func (c counts) complete() bool {
	return c.Sent == c.Answered && c.Orders >= c.Sent && c.Shipments >= c.Orders && c.Notices >= c.Orders && c.Charges >= c.Orders && c.Judged >= c.Orders && c.Held == 0
}

func (s *system) count(ctx context.Context) (c counts, err error) {
	c.Sent, c.Answered = s.driver.progress()
	charges, _ := s.provider.log()
	c.Charges = len(charges)
	err = s.admin(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select (select count(*) from orders), (select count(distinct order_id) from shipments),
			(select count(distinct order_id) from notices),
			(select count(*) from chaos.outbox) + (select count(*) from chaos.outbox_failed)
				+ (select count(*) from chaos.claim_failed where state <> 'nacked')
				+ (select count(*) from chaos.effect where state in ('running', 'pending', 'doubt'))`).Scan(&c.Orders, &c.Shipments, &c.Notices, &c.Held)
	})
	c.Judged = min(c.Shipments, c.Notices)
	if s.observer != nil {
		c.Judged = s.observer.judged()
	}
	return c, err
}
