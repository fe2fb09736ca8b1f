package main

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
)

// stock is tables that have been filled for long: so many events in the outbox, in the archive and among the dead letters, and a tenth of
// that among the outbox's failed and delayed events, the effects, the idempotency keys and what operators did.
type stock struct {
	pool   *pgxpool.Pool
	schema string
	rows   int
}

// eventSQL is event n's ID in SQL. Dead letters are the events from 1 on, then come those of the outbox, then those of the archive.
const eventSQL = `'0198c0de-' || left(md5((n)::text), 4) || '-7' || substr(md5((n)::text), 5, 3) || '-8d21-' || right(md5((n)::text), 12)`

func eventID(n int) string {
	sum := md5.Sum([]byte(strconv.Itoa(n)))
	h := hex.EncodeToString(sum[:])
	return "0198c0de-" + h[:4] + "-7" + h[4:7] + "-8d21-" + h[20:]
}

// chunk is how many rows one statement adds to a table: claim_failed's trigger keeps them until it has counted them.
const chunk = 250_000

// filled is a table with the statements that fill it. One that names {from} and {to} is run for each chunk of {rows}, without the
// indexes that are none of a constraint: they are made anew afterwards, which takes a fifth of the time.
type filled struct {
	table string
	rows  int
	sql   string
}

func (s stock) fill(ctx context.Context, progress func(string, ...any)) error {
	if err := errors.Join(outbox.Migrate(ctx, s.pool, s.schema), claim.Migrate(ctx, s.pool, s.schema), effect.Migrate(ctx, s.pool, s.schema), idempotencykey.Migrate(ctx, s.pool, s.schema)); err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `set synchronous_commit = off; set maintenance_work_mem = '512MB'`); err != nil {
		return err
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), `reset all`) }()
	for _, f := range s.tables() {
		began := time.Now()
		if err := s.fillTable(ctx, conn.Conn(), f); err != nil {
			return fmt.Errorf("%s: %w", f.table, err)
		}
		if took := time.Since(began); took > time.Second {
			progress("filled %s in %.0f s", f.table, took.Seconds())
		}
	}
	return nil
}

func (s stock) tables() []filled {
	few := s.rows / 10
	return []filled{
		{"consumer", 0, `insert into {s}.consumer (name) select 'bench/consumer-' || n from generate_series(1, 40) n`},
		// Half of the dead letters have one cause, half of them one consumer, a tenth one key, and one topic has none but the oldest.
		{"claim_failed", s.rows, `insert into {s}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, handler, topic, headers, payload, first_at, failed_at)
			select case when n % 4 < 2 then 1 else n % 40 + 1 end, md5(n::text)::uuid, {event}, case n % 10 when 3 then 'tenant' else 'key-' || n / 10 end,
				(array['dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'blocked', 'retrying'])[n % 10 + 1],
				3, 'attempts', case when n % 7 < 4 then 'carrier: 503 after ms ' else 'no stock for ' || translate((n % 300)::text, '0123456789', 'abcdefghij') || ' ' end || n,
				'handler', case when n <= 100 then 'topic-old' else 'topic-' || n % 200 end, convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), at, at
			from (select n, now() - ({rows} - n) * interval '50 ms' as at from generate_series({from}, {to}) n) f`},
		{"outbox", s.rows, `insert into {s}.outbox (shard, seq, event_id, topic, key, headers, payload)
			select n % 16, n, {event}, 'topic-' || n % 200, 'key-' || n % 1000000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8') from generate_series({rows} + {from}, {rows} + {to}) n`},
		{"outbox", 0, `select setval(format('{s}.outbox_seq_%s', shard), 3 * {rows}) from {s}.outbox_shard`},
		{"outbox_topic", 0, `insert into {s}.outbox_topic (topic, paused_at, paused_by) values ('topic-3', now(), 'bench')`},
		{"outbox_archive", 0, `select {s}.outbox_archive_days('10 days')`},
		{"outbox_archive", 0, days},
		{"outbox_archive", s.rows, `insert into {s}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
			select now() + interval '6 days' * (n / 100 * 100 - 3 * {rows}) / {rows}, n % 16, n, {event}, 'topic-' || n % 200, 'key-' || n % 1000000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), now()
			from generate_series(2 * {rows} + {from}, 2 * {rows} + {to}) n`},
		{"outbox_failed", few, `insert into {s}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
			select n % 100000, n % 16, n, {event}, 'topic-' || n % 200, 'key-' || n % 100000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), now(), state, 3,
				case state when 'blocked' then '' else 'broker: timeout after ' || n || ' ms' end
			from (select n, (array['dead', 'blocked', 'discarded'])[n % 3 + 1] as state from generate_series(30 * {rows} + {from}, 30 * {rows} + {to}) n) f`},
		{"outbox_delayed", few, `insert into {s}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
			select now() + interval '1 day' + n * interval '1 ms', n, {event}, 'topic-' || n % 200, 'key-' || n % 100000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8')
			from generate_series(40 * {rows} + {from}, 40 * {rows} + {to}) n`},
		{"effect", few, `insert into {s}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, event_id)
			select now(), 'bench/mail/' || {event}, case when n % 10000 = 0 then 'doubt' else 'done' end, gen_random_uuid(), 1, now() - n * interval '1 ms', now() - n * interval '1 ms', now(), {event}
			from generate_series({from}, {to}) n`},
		{"idempotency_key", few, `insert into {s}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body, created_at)
			select sha256(n::text::bytea), 'bench', '\x01', 'key-' || n, 'POST /orders', '', 201, '', convert_to('{}', 'UTF8'), now() from generate_series({from}, {to}) n`},
		{"claim_audit", few, `insert into {s}.claim_audit (actor, action, consumer, event_id) select 'bench', 'replay', 'bench/consumer-1', {event} from generate_series({from}, {to}) n`},
		{"claim_failed_count", 0, `select {s}.claim_failed_fold() from generate_series(1, 10)`}, // as processes do every minute
	}
}

// days makes the archive's days that have passed, as outbox_archive_days has made them day by day.
const days = `do $$
	begin
		for n in 1..7 loop
			execute format('create table {s}.outbox_archive_%s partition of {s}.outbox_archive for values from (%L) to (%L)',
				to_char(date_trunc('day', now(), 'UTC') at time zone 'UTC' - n * interval '1 day', 'YYYYMMDD'),
				date_trunc('day', now(), 'UTC') - n * interval '24 hours', date_trunc('day', now(), 'UTC') - (n - 1) * interval '24 hours');
		end loop;
	end
	$$`

func (s stock) fillTable(ctx context.Context, conn *pgx.Conn, f filled) error {
	run := func(from, to int) error {
		sql := strings.NewReplacer("{s}", s.schema, "{rows}", strconv.Itoa(cmp.Or(f.rows, s.rows)), "{from}", strconv.Itoa(from), "{to}", strconv.Itoa(to), "{event}", eventSQL).Replace(f.sql)
		_, err := conn.Exec(ctx, sql)
		return err
	}
	table := s.schema + "." + f.table
	if f.rows == 0 {
		return errors.Join(run(0, 0), settle(ctx, s.pool, table))
	}
	rows, err := conn.Query(ctx, `select indexrelid::regclass::text, replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') from pg_index where indrelid = $1::regclass and not indisunique`, table)
	if err != nil {
		return err
	}
	type index struct{ Name, Definition string }
	indexes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[index])
	if err != nil {
		return err
	}
	for _, i := range indexes {
		if _, err := conn.Exec(ctx, `drop index `+i.Name); err != nil {
			return err
		}
	}
	for from := 1; from <= f.rows; from += chunk {
		if err := run(from, min(from+chunk-1, f.rows)); err != nil {
			return err
		}
	}
	for _, i := range indexes {
		if _, err := conn.Exec(ctx, i.Definition); err != nil {
			return err
		}
	}
	return settle(ctx, s.pool, table)
}
