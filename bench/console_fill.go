package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
)

// stock is tables that have been filled for long: so many events in the outbox, in the archive and among the dead letters, and a tenth of
// that among the outbox's failed events, the effects, the idempotency keys and what operators did.
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

func (s stock) fill(ctx context.Context, progress func(string, ...any)) error {
	if err := errors.Join(outbox.Migrate(ctx, s.pool, s.schema), claim.Migrate(ctx, s.pool, s.schema), effect.Migrate(ctx, s.pool, s.schema), idempotencykey.Migrate(ctx, s.pool, s.schema)); err != nil {
		return err
	}
	for _, t := range []struct{ table, sql string }{
		{"consumer", `insert into {s}.consumer (name) select 'bench/consumer-' || n from generate_series(1, 5) n`},
		{"claim_failed", `insert into {s}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, handler, topic, headers, payload, first_at, failed_at)
			select n % 5 + 1, md5(n::text)::uuid, {event}, 'key-' || n / 10, (array['dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'dead', 'blocked', 'retrying'])[n % 10 + 1],
				3, 'attempts', (array['no customer ', 'carrier: 503 after ms ', 'decode: unknown currency ', 'dial tcp: refused ', 'no stock for '])[n % 7 % 5 + 1] || n,
				'handler', 'topic-' || n % 20, convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), at, at
			from (select n, now() - ({rows} - n) * interval '50 ms' as at from generate_series(1, {rows}) n) f`},
		{"outbox", `insert into {s}.outbox (shard, seq, event_id, topic, key, headers, payload)
			select n % 16, n, {event}, 'topic-' || n % 20, 'key-' || n % 100000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8') from generate_series({rows} + 1, 2 * {rows}) n`},
		{"outbox", `select setval(format('{s}.outbox_seq_%s', shard), 3 * {rows}) from {s}.outbox_shard`},
		{"outbox_archive", `select {s}.outbox_archive_days('1 day')`},
		{"outbox_archive", `insert into {s}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
			select today + (now() - today) * (n / 100 * 100 - 2 * {rows}) / {rows}, n % 16, n, {event}, 'topic-' || n % 20, 'key-' || n % 100000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), now()
			from generate_series(2 * {rows} + 1, 3 * {rows}) n, (select date_trunc('day', now(), 'UTC') as today) d`},
		{"outbox_failed", `insert into {s}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
			select n % 100000, n % 16, n, {event}, 'topic-' || n % 20, 'key-' || n % 100000, convert_to('{}', 'UTF8'), convert_to(repeat('x', 100), 'UTF8'), now(), state, 3,
				case state when 'blocked' then '' else 'broker: timeout after ' || n || ' ms' end
			from (select n, (array['dead', 'blocked', 'discarded'])[n % 3 + 1] as state from generate_series(3 * {rows} + 1, 3 * {rows} + {rows} / 10) n) f`},
		{"effect", `insert into {s}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, event_id)
			select now(), 'bench/mail/' || {event}, case when n % 10000 = 0 then 'doubt' else 'done' end, gen_random_uuid(), 1, now() - n * interval '1 ms', now() - n * interval '1 ms', now(), {event}
			from generate_series(1, {rows} / 10) n`},
		{"idempotency_key", `insert into {s}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body, created_at)
			select sha256(n::text::bytea), 'bench', '\x01', 'key-' || n, 'POST /orders', '', 201, '', convert_to('{}', 'UTF8'), now() from generate_series(1, {rows} / 10) n`},
		{"claim_audit", `insert into {s}.claim_audit (actor, action, consumer, event_id) select 'bench', 'replay', 'bench/consumer-1', {event} from generate_series(1, {rows} / 10) n`},
	} {
		began := time.Now()
		sql := strings.NewReplacer("{s}", s.schema, "{rows}", strconv.Itoa(s.rows), "{event}", eventSQL).Replace(t.sql)
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", t.table, err)
		}
		if err := settle(ctx, s.pool, s.schema+"."+t.table); err != nil {
			return err
		}
		if took := time.Since(began); took > time.Second {
			progress("filled %s in %.0f s", t.table, took.Seconds())
		}
	}
	return settle(ctx, s.pool, s.schema+".claim_failed_count")
}
