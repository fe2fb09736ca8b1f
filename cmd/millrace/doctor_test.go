package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// clinic is a server as one should be, which the others are not: a stack's has no fsync.
func clinic(t *testing.T) *devstack.Server {
	return devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"fsync": "on", "max_prepared_transactions": "5"}})
}

// patient is a database with all tables.
func patient(t *testing.T, server *devstack.Server, name string) *explained {
	x := &explained{operator: &operator{t: t, pool: devtest.PoolOn(t, server.DSN(), func(*pgxpool.Config) {}), dsn: server.DSN(), schema: name}}
	x.run(cli.ExitOK, "migrate", "up")
	var err error
	x.events, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: name})
	require.NoError(t, err)
	return x
}

func (o *operator) healthy(args ...string) {
	o.t.Helper()
	assert.Equal(o.t, "No problems found.\n", o.run(cli.ExitOK, append([]string{"doctor"}, args...)...))
}

// finds expects one finding, of the check, and returns it.
func (o *operator) finds(check, symptom string, args ...string) doctor.Finding {
	o.t.Helper()
	var found []doctor.Finding
	require.NoError(o.t, json.Unmarshal([]byte(o.run(cli.ExitFailed, append([]string{"doctor", "-o", "json"}, args...)...)), &found))
	require.Len(o.t, found, 1, "%v", found)
	f := found[0]
	assert.Equal(o.t, check, f.Check)
	assert.Regexp(o.t, symptom, f.Symptom)
	assert.NotEmpty(o.t, f.Cause)
	require.NotEmpty(o.t, f.Remedy)
	for _, command := range regexp.MustCompile(`millrace( [^\s;,()]+)+`).FindAllString(f.Remedy, -1) {
		runs(o.t, command)
	}
	assert.Contains(o.t, o.run(cli.ExitFailed, append([]string{"doctor"}, args...)...), "\n  remedy  "+f.Remedy+"\n\n1 problem found.\n", "as it can be run")
	assert.Equal(o.t, "No problems found.\n", o.run(cli.ExitOK, append([]string{"doctor", "--ignore", check}, args...)...), "it can be ignored")
	return f
}

// relayed waits until a relay holds all shards.
func (x *explained) relayed() {
	x.t.Helper()
	require.Eventually(x.t, func() bool {
		r, err := outboxadmin.Inspect(x.t.Context(), x.pool, x.schema)
		return err == nil && len(r.Relays) == 1 && r.Relays[0].Shards == len(r.Shards)
	}, time.Minute, 10*time.Millisecond)
}

// says waits until a relay says that the topic is in the state.
func (x *explained) says(topic, state string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool {
		r, err := outboxadmin.Inspect(x.t.Context(), x.pool, x.schema)
		return err == nil && len(r.Topics) == 1 && r.Topics[0].Topic == topic && r.Topics[0].State == state
	}, time.Minute, 10*time.Millisecond)
}

// Each trouble is found, alone, on a system that was healthy before, and is again when it is mended.
func TestDoctor(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(troubles))
	for half := range slices.Chunk(names, (len(names)+1)/2) {
		t.Run(half[0]+" to "+half[len(half)-1], func(t *testing.T) {
			t.Parallel()
			server := clinic(t)
			for _, name := range half {
				t.Run(name, func(t *testing.T) {
					x := patient(t, server, "s_"+strings.ReplaceAll(name, " ", "_"))
					x.healthy()
					troubles[name](x)
					x.healthy()
					x.exec(`drop schema {schema} cascade`)
				})
			}
		})
	}
}

// documented returns the statement of docs/operations.md that begins so, with the schema as in exec.
func documented(t *testing.T, beginning string) string {
	content, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	statement := regexp.MustCompile(`(?ms)^` + regexp.QuoteMeta(beginning) + `.*?;$`)
	if beginning == "do $$" {
		statement = regexp.MustCompile(`(?ms)^do \$\$.*?^end \$\$;$`)
	}
	found := statement.FindAllString(string(content), -1)
	require.Len(t, found, 1, beginning)
	return strings.ReplaceAll(found[0], "millrace.", "{schema}.")
}

var troubles = map[string]func(x *explained){
	"schema missing": func(x *explained) {
		x.schema += "_x"
		x.finds("schema", `schema "\w+_x" has no tables`)
		x.run(cli.ExitOK, "migrate", "up")
	},
	"schema newer": func(x *explained) {
		x.exec(`insert into {schema}.migration (component, version, name) values ('outbox', 99, 'later')`)
		x.finds("schema", `^the tables of outbox have version 99, but this command supports version 1$`)
		x.exec(`delete from {schema}.migration where version = 99`)
	},
	"wal not read": func(x *explained) {
		relay, err := outbox.NewRelay(x.pool, publisherFunc(func(string, string) error { return nil }), outbox.RelayConfig{Schema: x.schema, Source: outbox.WAL, Logger: quiet})
		require.NoError(x.t, err)
		ctx, cancel := context.WithCancel(x.t.Context())
		var running sync.WaitGroup
		running.Go(func() { assert.NoError(x.t, relay.Run(ctx)) })
		active := func(want bool) {
			require.Eventually(x.t, func() bool {
				var is bool
				err := x.pool.QueryRow(x.t.Context(), `select coalesce(bool_or(active and confirmed_flush_lsn is not null), false) from pg_replication_slots where starts_with(slot_name, $1)`, x.schema+"_outbox_").Scan(&is)
				return err == nil && is == want
			}, time.Minute, 10*time.Millisecond)
		}
		active(true)
		f := x.finds("wal", `^nothing bounds the WAL that the server keeps for the slot `+x.schema+`_outbox_[0-9a-f]{8}$`)
		assert.Contains(x.t, f.Remedy, "max_slot_wal_keep_size = ")
		x.exec(`select pg_create_logical_replication_slot('neighbour_log_' || oid, 'pgoutput') from pg_database where datname = current_database()`)
		x.healthy() // a bound would lose the events of the neighbour
		cancel()
		running.Wait()
		active(false)
		f = x.finds("wal", `^no relay reads the slot `+x.schema+`_outbox_[0-9a-f]{8}$`)
		assert.Contains(x.t, f.Remedy, "pg_drop_replication_slot")
		x.exec(`select pg_drop_replication_slot(slot_name) from pg_replication_slots`)
		x.exec(`drop publication ` + x.schema + `_outbox`)
	},
	"log not landed": func(x *explained) {
		slot := func() (is bool) {
			err := x.pool.QueryRow(x.t.Context(), `select exists (select from pg_replication_slots where slot_name = `+x.schema+`.outbox_landing_slot() and active and confirmed_flush_lsn is not null)`).Scan(&is)
			require.NoError(x.t, err)
			return is
		}
		exists := func(query string) {
			x.t.Helper()
			require.Eventually(x.t, func() (is bool) {
				require.NoError(x.t, x.pool.QueryRow(x.t.Context(), `select exists (`+strings.ReplaceAll(query, "{schema}", x.schema)+`)`).Scan(&is))
				return is
			}, time.Minute, 10*time.Millisecond)
		}
		begin := func(statement string) (rollback func()) {
			tx, err := x.pool.Begin(x.t.Context())
			require.NoError(x.t, err)
			_, err = tx.Exec(x.t.Context(), strings.ReplaceAll(statement, "{schema}", x.schema))
			require.NoError(x.t, err)
			x.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			return func() { assert.NoError(x.t, tx.Rollback(context.Background())) }
		}
		run := func() (end func()) {
			relay, err := outbox.NewRelay(x.pool, publisherFunc(func(string, string) error { return nil }), outbox.RelayConfig{Schema: x.schema, Store: outbox.Log, Logger: quiet})
			require.NoError(x.t, err)
			ctx, cancel := context.WithCancel(x.t.Context())
			var running sync.WaitGroup
			running.Go(func() { assert.NoError(x.t, relay.Run(ctx)) })
			return func() {
				cancel()
				running.Wait()
				require.Eventually(x.t, func() bool { return !slot() }, time.Minute, 10*time.Millisecond)
			}
		}
		land := func() (end func()) {
			end = run()
			require.Eventually(x.t, slot, time.Minute, 10*time.Millisecond)
			return end
		}
		rollback := begin(`select pg_current_xact_id()`)
		end := run()
		exists(`select from pg_replication_slots where slot_name = {schema}.outbox_landing_slot() and confirmed_flush_lsn is null and active`)
		assert.Contains(x.t, x.run(cli.ExitFailed, "doctor"), "\nNote: every role of the database may put events into the WAL")
		revoke := documented(x.t, "do $$")
		x.exec(`create role app; create role relay; create role nobody`)
		x.exec(revoke)
		exists(`select from pg_proc f where f.proname = 'pg_logical_emit_message' having bool_and(has_function_privilege('app', oid, 'execute') and has_function_privilege('relay', oid, 'execute') and not has_function_privilege('nobody', oid, 'execute'))`)
		defer x.exec(`drop owned by app, relay; drop role app, relay, nobody`)
		defer x.exec(strings.NewReplacer("revoke", "grant", "from public", "to public").Replace(revoke))
		f := x.finds("landing", `^the slot `+x.schema+`_log_[0-9]+ is being created$`)
		assert.Contains(x.t, f.Remedy, "--max-transaction")
		assert.Regexp(x.t, `(?m)^landing  a relay creates the slot, which waits for transactions that are open`, x.run(cli.ExitOK, "outbox", "status"))
		rollback()
		require.Eventually(x.t, slot, time.Minute, 10*time.Millisecond)
		x.healthy()

		rollback = begin(`lock table {schema}.outbox in share row exclusive mode`)
		x.exec(`update {schema}.outbox_landing set landed_at = now() - interval '2 minutes'`)
		x.finds("landing", `^a relay reads the WAL, but has landed nothing since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`)
		assert.Regexp(x.t, `(?m)^landing  a relay reads the WAL, but last landed events 2m\S* ago .*: millrace doctor$`, x.run(cli.ExitOK, "outbox", "status"))
		rollback()
		exists(`select from {schema}.outbox_landing where landed_at > now() - interval '1 minute'`)
		x.healthy()
		assert.Regexp(x.t, `(?m)^landing  a relay reads the WAL, .* behind; events in there are not counted here$`, x.run(cli.ExitOK, "outbox", "status"))
		x.exec(`alter system set max_slot_wal_keep_size = '10GB'`)
		x.exec(`select pg_reload_conf()`)
		require.Eventually(x.t, func() bool {
			return strings.Contains(x.run(cli.ExitFailed, "doctor"), "landing: max_slot_wal_keep_size is 10GB")
		}, time.Minute, 10*time.Millisecond)
		x.exec(`alter system reset max_slot_wal_keep_size`)
		x.exec(`select pg_reload_conf()`)
		end()

		into, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: x.schema, Store: outbox.Log})
		require.NoError(x.t, err)
		id := outbox.NewID()
		require.NoError(x.t, pgtx.Run(x.t.Context(), x.pool, func(ctx context.Context, _ pgx.Tx) error {
			return into.Publish("topic", message.NewMessageWithContext(ctx, id, nil))
		}))
		f = x.finds("landing", `^no relay lands the events in the WAL: the server keeps .* for the slot `+x.schema+`_log_[0-9]+$`)
		assert.Contains(x.t, f.Remedy, "outbox.store log")
		assert.Regexp(x.t, `(?m)^landing  no relay reads the WAL; events may be in .* of it, which are not counted here$`, x.run(cli.ExitOK, "outbox", "status"))
		assert.Regexp(x.t, `in the write-ahead log, and no relay has made a\s+row of it yet`, x.run(cli.ExitFailed, "explain", id))

		x.exec(`select pg_drop_replication_slot({schema}.outbox_landing_slot())`)
		f = x.finds("landing", `^no slot keeps the events that publishers put into the WAL$`)
		assert.Contains(x.t, f.Remedy, "delete from")
		assert.Contains(x.t, x.run(cli.ExitOK, "outbox", "status"), "no slot keeps events in the WAL, so publishers with outbox.store log are refused")
		end = land()
		f = x.finds("landing", `^WAL was lost at .*: from [0-9A-F]+/[0-9A-F]+ to [0-9A-F]+/[0-9A-F]+$`)
		assert.Contains(x.t, f.Remedy, "set cut_at = null")
		assert.Contains(x.t, x.run(cli.ExitOK, "outbox", "status"), "WAL was lost")
		x.exec(`update {schema}.outbox_landing set cut_at = null`)
		x.healthy()
		var here string
		require.NoError(x.t, x.pool.QueryRow(x.t.Context(), documented(x.t, "select pg_current_wal_insert_lsn()")).Scan(&here))
		reached := strings.ReplaceAll(documented(x.t, "with dropped as"), "0/3A5F1C8", here)
		exists(`select from {schema}.outbox_landing where landed >= '` + here + `'`) // also where nobody writes
		end()
		x.exec(strings.ReplaceAll(reached, here, "FFFF/0"))
		exists(`select from {schema}.outbox_landing`)
		x.exec(reached)
		exists(`select where not exists (select from {schema}.outbox_landing) and not exists (select from pg_replication_slots where slot_name = {schema}.outbox_landing_slot())`)
	},
	"relay dead": func(x *explained) {
		id := x.publish("e", "topic", "k", 0)
		f := x.finds("outbox", `^1 event is waiting, the oldest for \S+, and no relay runs$`)
		assert.Contains(x.t, f.Remedy, "millrace relay --broker kafka --brokers HOST:PORT --dsn "+reach.Quoted(reach.WithoutPassword(x.dsn))+" --schema "+x.schema)
		end := x.relay(3, func(string, string) error { return nil })
		x.located(id, "archived")
		x.healthy()
		end()
	},
	"broker refuses": func(x *explained) {
		x.publish("e", "topic", "k", 0)
		end := x.relay(3, func(string, string) error { return transport.ErrUnavailable })
		x.relayed()
		x.healthy()
		x.says("topic", outboxadmin.TopicFailing)
		f := x.finds("outbox", `^the broker has taken no event of topic topic for \S+, and 1 event is waiting$`, "--max-lag=1ns")
		assert.Equal(x.t, "the publisher's last error: "+transport.ErrUnavailable.Error(), f.Cause)
		end()
		x.exec(`delete from {schema}.outbox`)
	},
	"broker hangs": func(x *explained) {
		x.publish("e", "topic", "k", 0)
		answers := make(chan struct{})
		end := x.relay(3, func(string, string) error { <-answers; return nil })
		x.relayed()
		x.healthy()
		x.finds("outbox", `^1 event is waiting, the oldest for \S+, although 1 relay runs$`, "--max-lag=1ns")
		close(answers)
		end()
	},
	"topic paused": func(x *explained) {
		x.run(cli.ExitOK, "outbox", "topic", "pause", "topic", "--actor", "ada", "--note", "maintenance")
		assert.Regexp(x.t, `No problems found.\nNote: topic topic has been paused for \S+\.\n`, x.run(cli.ExitOK, "doctor"))
		x.run(cli.ExitOK, "outbox", "topic", "redirect", "other", "--to", "third")
		assert.Regexp(x.t, `Note: events of topic other have been published to third for \S+\.\n`, x.run(cli.ExitOK, "doctor"))
		x.run(cli.ExitOK, "outbox", "topic", "redirect", "other", "--off")
		x.publish("e", "topic", "k", 0)
		end := x.relay(3, func(string, string) error { return nil })
		x.relayed()
		f := x.finds("outbox", `^topic topic has been paused for \S+, and 1 event is waiting$`)
		assert.Equal(x.t, "an operator paused it: by ada, maintenance", f.Cause)
		assert.Regexp(x.t, `^millrace outbox topic resume .* topic$`, f.Remedy)
		x.run(cli.ExitOK, "outbox", "topic", "redirect", "topic", "--to", "other")
		f = x.finds("outbox", `^topic topic has been paused for \S+, and 1 event is waiting$`)
		assert.Regexp(x.t, `resume .* topic; or millrace outbox topic resume .* other$`, f.Remedy)
		x.run(cli.ExitOK, "outbox", "topic", "redirect", "topic", "--off")
		x.run(cli.ExitOK, "outbox", "topic", "resume", "topic")
		end()
		x.exec(`delete from {schema}.outbox`)
	},
	"stuck shard": func(x *explained) {
		x.publish("e", "topic", "k", 0)
		x.exec(`insert into {schema}.outbox_relay (relay_id, expires_at) values (gen_random_uuid(), now() + interval '1 hour')`)
		x.finds("outbox", `^shard \d+ is stuck: 1 event is waiting, the oldest for \S+, and no relay holds it$`, "--max-lag=1ns")
		x.exec(`delete from {schema}.outbox; delete from {schema}.outbox_relay`)
	},
	"nobody retries": func(x *explained) {
		x.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, retry_at)
			values ('retrying', 'e1', 't', '', 7, 7, 1, '{}', '', now(), 1, now())`)
		x.finds("outbox", `^1 failed event is to be retried, and no relay runs$`)
		x.exec(`delete from {schema}.outbox_failed`)
	},
	"delayed for too long": func(x *explained) {
		x.publish("e", "topic", "k", time.Hour)
		x.healthy()
		x.exec(`update {schema}.outbox_delayed set due_at = now() - interval '1 hour'`)
		x.finds("outbox", `^delayed events are overdue by 60m, and no relay runs$`)
		x.exec(`insert into {schema}.outbox_relay (relay_id, expires_at) values (gen_random_uuid(), now() + interval '1 hour')`)
		x.finds("outbox", `^delayed events are overdue by 60m, although 1 relay runs$`)
		x.exec(`delete from {schema}.outbox_delayed; delete from {schema}.outbox_relay`)
	},
	"table missing": func(x *explained) {
		x.exec(`alter table {schema}.claim_start rename to claim_gone`)
		f := x.finds("poison", `^this check failed$`)
		assert.Contains(x.t, f.Remedy, "migrate print --from 0")
		x.exec(`alter table {schema}.claim_gone rename to claim_start`)
	},
	"strays": func(x *explained) {
		end := x.relay(3, func(string, string) error { return transport.ErrUnavailable })
		x.relayed()
		x.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) values (99, 1, 'e', 't', '', '{}', '')`)
		f := x.finds("sequences", `^events in shards that do not exist, which no relay publishes: 1;`)
		assert.NotContains(x.t, f.Remedy, "--fix", "which does not help")
		end()
		x.exec(`delete from {schema}.outbox`)
	},
	"dead": func(x *explained) {
		id := x.publish("e", "topic", "k", 0)
		end := x.relay(3, func(string, string) error { return transport.ErrRejected })
		x.located(id, "dead")
		end()
		x.finds("outbox", `^1 event is dead in the outbox, and 0 are blocked$`)
		x.exec(`delete from {schema}.outbox_failed`)
	},
	"poison in the outbox": func(x *explained) {
		x.exec(`update {schema}.outbox_shard set suspect = 'e1', suspect_deaths = array(select gen_random_uuid() from generate_series(1, 2)), deaths = array(select gen_random_uuid() from generate_series(1, 4)) where shard = 3`)
		f := x.finds("poison", `^relays ended 2 times while they sent event e1 of shard 3$`)
		assert.Contains(x.t, f.Remedy, "--schema "+x.schema+" e1")
		x.exec(`update {schema}.outbox_shard set suspect = null`)
		x.finds("poison", `^shard 3 had 4 unclean takeovers, and nothing was published in between$`)
		x.exec(`update {schema}.outbox_shard set deaths = '{}', suspect_deaths = '{}'`)
	},
	"poison at a consumer": func(x *explained) {
		x.deliver("notify", outbox.NewID(), "", handled)
		x.exec(`insert into {schema}.claim_start select id, '0197f3a0-1234-7abc-8def-0123456789ab', 1, 2 from {schema}.consumer`)
		x.finds("poison", `^consumer labour/notify started the event with record 0197f3a0-1234-7abc-8def-0123456789ab alone 2 times, and never finished it$`)
		x.exec(`delete from {schema}.claim_start`)
	},
	"circuit breaker": func(x *explained) {
		id := outbox.NewID()
		x.deliver("notify", id, "", never)
		x.run(cli.ExitOK, "dead", "replay", id)
		x.exec(`insert into {schema}.claim_run (service, name, beat_at, paused) values ('labour', 'host/1', now() + interval '5 min', '[{"consumer": "labour/notify", "seconds": 360, "error": "no answer"}]')`) // alive, however long this test takes
		f := x.finds("paused", `^consumer labour/notify has been paused for \S+ in process host/1$`, "--max-lag=1ns")                                                                                            // and no retry is overdue
		assert.Contains(x.t, f.Cause, "no answer")
		x.exec(`delete from {schema}.claim_run`)
		x.finds("retries", `^1 event of consumer labour/notify is overdue for a retry$`, "--max-lag=1ns")
		x.run(cli.ExitOK, "dead", "discard", id, "--state", "all")
	},
	"full keys": func(x *explained) {
		cfg := claim.Config{Consumer: func(string) string { return "notify" }, Ordered: true, MaxBlocked: 1}
		for range 3 {
			msg := message.NewMessage(outbox.NewID(), nil)
			transport.SetKey(msg, "labour 7")
			x.consume(cfg, msg, never)
		}
		x.exec(`update {schema}.claim_failed set state = 'nacked' where state = 'dead'`) // which is for another check
		f := x.finds("full-keys", `^key labour 7 of consumer labour/notify has been full for \S+: 1 event waits behind one that failed, and the broker keeps the next ones$`)
		assert.Contains(x.t, f.Remedy, "--key 'labour 7'")
		x.exec(`delete from {schema}.claim_failed`)
		x.exec(`delete from {schema}.claim_key`)
	},
	"dead letters": func(x *explained) {
		id := outbox.NewID()
		x.deliver("notify", id, "", never)
		f := x.finds("dead-letters", `^1 dead letter with 1 different error$`)
		assert.Contains(x.t, f.Cause, "no such labour")
		x.run(cli.ExitOK, "dead", "replay", id)
		x.healthy()
		x.finds("retries", `^1 event of consumer labour/notify is overdue for a retry$`, "--max-lag=1ns")
		x.run(cli.ExitOK, "dead", "discard", id, "--state", "all")
	},
	"a schedule that nobody fires": func(x *explained) {
		x.exec(`insert into {schema}.schedule values ('billing', 'report', '@hourly', 'UTC', now() - interval '3 hours', null)`)
		f := x.finds("schedules", `^schedule report of service billing is overdue by \S+$`)
		assert.Contains(x.t, f.Remedy, "schedule forget")
		assert.Contains(x.t, f.Remedy, "billing/report")
		x.exec(`delete from {schema}.schedule`)
	},
	"effects": func(x *explained) {
		ledger, err := effect.New(x.pool, effect.Config{Service: "labour", Schema: x.schema, Logger: quiet})
		require.NoError(x.t, err)
		defer ledger.Close()
		require.Error(x.t, effect.Once(effect.With(x.t.Context(), ledger), "sms:1", func(context.Context, string) error { return errors.New("timeout") }))
		f := x.finds("effects", `^1 effect is in doubt or in conflict, the first one since 20\S+$`)
		assert.Contains(x.t, f.Cause, "timeout")
		x.run(cli.ExitOK, "effect", "resolve", "labour/sms:1", "--done")
	},
	"transaction": func(x *explained) {
		tx, err := x.pool.Begin(x.t.Context())
		require.NoError(x.t, err)
		_, err = tx.Exec(x.t.Context(), `select pg_current_xact_id()`)
		require.NoError(x.t, err)
		x.healthy()
		f := x.finds("transactions", `^autovacuum cannot remove dead rows because of session \d+ of postgres`, "--max-transaction=1ns")
		assert.Contains(x.t, f.Remedy, fmt.Sprintf("pg_terminate_backend(%d)", tx.Conn().PgConn().PID()))
		_, err = tx.Exec(x.t.Context(), `prepare transaction 'forgotten'`)
		require.NoError(x.t, err)
		require.NoError(x.t, tx.Conn().Close(x.t.Context()))
		_ = tx.Rollback(x.t.Context()) // which is over; the pool gets its connection back
		f = x.finds("transactions", `^autovacuum cannot remove dead rows because of prepared transaction 'forgotten' of postgres, open for \S+$`, "--max-transaction=1ns")
		assert.Contains(x.t, f.Remedy, "rollback prepared 'forgotten'")
		x.exec(`rollback prepared 'forgotten'`)
	},
	"partitions": func(x *explained) {
		x.exec(`do $$ declare p regclass; begin
			for p in select inhrelid::regclass from pg_inherits where inhparent = '{schema}.processed'::regclass
				and inhrelid::regclass::text ~ '_[0-9]{8}$' and right(inhrelid::regclass::text, 8)::date > (now() at time zone 'UTC')::date
			loop execute 'drop table ' || p; end loop; end $$`)
		x.healthy() // nobody uses it: nobody keeps it
		x.deliver("notify", outbox.NewID(), "", handled)
		x.finds("partitions", `^table processed has no partition for tomorrow; the last one is for 20`)
		assert.Contains(x.t, x.run(cli.ExitOK, "retention", "run"), "Partitions for the next week exist: claims, effects, http_keys.")
		x.healthy()
		x.exec(`do $$ begin execute 'drop table {schema}.processed_' || to_char(now() at time zone 'UTC' - interval '1 day', 'YYYYMMDD'); end $$`)
		x.finds("partitions", `^table processed has no partition for 20\d\d-\d\d-\d\d$`)
		x.run(cli.ExitOK, "retention", "run")
		x.healthy()
	},
	"sequences": func(x *explained) {
		id := x.publish("e", "topic", "k", 0)
		end := x.relay(3, func(string, string) error { return transport.ErrUnavailable })
		x.relayed()
		x.exec(`update {schema}.outbox set seq = 1000`)
		x.finds("sequences", `^the sequence of shard \d+ is at 1, below number 1000 of an existing event, so new events would overtake it`)
		x.run(cli.ExitOK, "outbox", "check", "--fix")
		end()
		x.exec(`delete from {schema}.outbox where event_id = '` + id + `'`)
	},
	"settings": func(x *explained) {
		x.exec(`create role careless; grant usage on schema {schema} to careless; alter role careless set synchronous_commit = off`)
		x.finds("settings", `^synchronous_commit is off for role careless$`)
		x.exec(`alter role careless reset synchronous_commit; alter role careless in database postgres set default_transaction_read_only = true`)
		f := x.finds("settings", `^default_transaction_read_only=true for role careless in the database$`)
		assert.Contains(x.t, f.Remedy, "alter role careless in database postgres reset default_transaction_read_only")
		x.exec(`drop owned by careless; drop role careless`)
		x.healthy()
		healthy := x.dsn
		x.dsn += "&lock_timeout=10"
		x.finds("settings", `^lock_timeout is 10ms$`)
		x.dsn = healthy + "&synchronous_commit=off"
		x.finds("settings", `^synchronous_commit is off for this session's role, or the server$`)
		x.dsn = healthy + "&default_transaction_read_only=on"
		x.finds("server", `^this database accepts no writes$`)
		x.dsn = healthy
		x.exec(`alter table {schema}.outbox_failed set (autovacuum_enabled = off)`)
		x.finds("autovacuum", `^autovacuum is off for table outbox_failed$`)
		x.exec(`alter table {schema}.outbox_failed reset (autovacuum_enabled)`)
	},
	"undersized pool": func(x *explained) {
		x.healthy("--pool=22", "--concurrency=20")
		f := x.finds("pool", `^a pool of 10 connections is too small for 20 messages at once$`, "--pool=10", "--concurrency=20")
		assert.Contains(x.t, f.Remedy, "set pool_max_conns=22 in the connection string, or the concurrency to 8")
		x.finds("pool", `for 20 messages`, "--pool=22", "--concurrency=20", "--relay-inside")
		x.finds("pool", `^90 processes with pools of 22 connections can use 1980, but the server has 600$`, "--pool=22", "--concurrency=20", "--processes=90")
	},
	"window": func(x *explained) {
		x.finds("window", `^consumers keep records for 1 day, but an event may be delivered for 7 days \(--horizon\)$`, "--retention=24h")
	},
	"broker": func(x *explained) {
		x.finds("broker", `^kafka does not answer$`, "--broker=kafka", "--brokers=127.0.0.1:1")
	},
}

// A development stack has no fsync, which is no problem there; on any other server it is.
func TestDoctorOnADevelopmentStack(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	const note = "this is a development stack: fsync is off, so a crash of the machine may corrupt its database"
	ignored := "--ignore=pool,transactions" // of other tests on the same server
	assert.Equal(t, "No problems found.\nNote: "+note+".\n", o.run(cli.ExitOK, "doctor", ignored))
	var found []doctor.Finding
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "doctor", ignored, "-o", "json")), &found))
	assert.Equal(t, []doctor.Finding{{Check: "server", Symptom: note, Note: true}}, found)

	x := patient(t, devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"millrace.development": "off"}}), "production")
	f := x.finds("server", `^fsync or full_page_writes is off$`)
	assert.Contains(t, f.Remedy, ` -c 'alter system set fsync = on' -c '`)
}

// Who may look need not own the tables.
func TestDoctorAsAnOperator(t *testing.T) {
	t.Parallel()
	server := clinic(t)
	x := patient(t, server, "operated")
	x.exec(`create role looker login password 'secret'`)
	x.run(cli.ExitOK, "migrate", "grants", "--operator", "looker")
	x.deliver("notify", outbox.NewID(), "", never)
	owner, err := url.Parse(x.dsn)
	require.NoError(t, err)
	owner.User = url.UserPassword("looker", "secret")
	x.dsn = owner.String()
	x.finds("dead-letters", `^1 dead letter with 1 different error$`)
	assert.Contains(t, x.run(cli.ExitFailed, "explain", outbox.NewID()), "has no event with this ID. Searched: ")
}

// A pooler is told apart from a server. The test is skipped where PgBouncer is not installed.
func TestDoctorBehindAPooler(t *testing.T) {
	t.Parallel()
	server := clinic(t)
	x := patient(t, server, "pooled")
	x.dsn = devtest.PgBouncer(t, server, 2).DSN()
	x.finds("server", `^this connection goes through a pooler$`)
	id := outbox.NewID()
	x.deliver("notify", id, "", handled)
	for range 3 { // on any of its connections
		assert.Contains(t, x.run(cli.ExitOK, "explain", id), "claim labour/notify: completed\n")
		x.run(cli.ExitOK, "outbox", "status")
	}
}

// A relay could land events that no standby has, whose slot is then past them.
func TestDoctorOfASlotThatStandbysSynchronize(t *testing.T) {
	t.Parallel()
	x := patient(t, devtest.Postgres(t, devstack.ServerConfig{Release: devstack.NewestPostgres}), "failover")
	x.exec(`select pg_create_logical_replication_slot({schema}.outbox_landing_slot(), 'pgoutput', false, false, true)`)
	assert.NotContains(t, x.run(cli.ExitFailed, "doctor"), "synchronized_standby_slots", "there is no standby")
	x.exec(`select pg_create_physical_replication_slot('standby')`)
	assert.Regexp(t, `(?s)landing: synchronized_standby_slots is empty\n.*synchronized_standby_slots = 'standby'`, x.run(cli.ExitFailed, "doctor"))
	x.exec(`alter system set synchronized_standby_slots = 'standby'`)
	x.exec(`select pg_reload_conf()`)
	require.Eventually(t, func() bool { return !strings.Contains(x.run(cli.ExitFailed, "doctor"), "synchronized_standby_slots") }, time.Minute, 10*time.Millisecond)
}

// Pub/Sub is asked though nothing waits for it: its client connects when it is first used. And what a configuration says
// needs no flags.
func TestDoctorFindsABrokerDown(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
	server := clinic(t)
	x := patient(t, server, "unconnected")
	t.Setenv("MILLRACE_POSTGRES_DSN", "") // which would win over the file
	f := x.finds("broker", `^pubsub does not answer$`, "--broker=pubsub", "--project=p")
	assert.Contains(t, f.Remedy, "--project")
	file := configFile(t, "service: s\nbroker: pubsub\npubsub: {project_id: p}\nclaim: {retention: 48h, redelivery_horizon: 24h}\npostgres: {dsn: '"+x.dsn+"', schema: "+x.schema+"}\n")
	out := says(t, cli.ExitFailed, "doctor", "--config", file)
	assert.Contains(t, out, "broker: pubsub does not answer")
	assert.NotContains(t, out, "window")
	out = says(t, cli.ExitFailed, "doctor", "--config", file, "--horizon=72h", "--ignore=broker")
	assert.Contains(t, out, "consumers keep records for 2 days, but an event may be delivered for 3 days (--horizon)\n")
	x.publish("e", "topic", "k", 0)
	out = says(t, cli.ExitFailed, "doctor", "--config", file, "--ignore=broker")
	assert.Contains(t, out, "remedy  start a service with a relay inside, or: millrace relay --config "+file+"\n")
}

// A topic whose name the broker does not take is no broker that is down.
func TestDoctorNamesATopicThatCannotBe(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	brokers := "--brokers=" + strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ",")
	out := o.run(cli.ExitFailed, "doctor", "--ignore", "server", "--broker", "kafka", brokers, "--subscribe", "c=no topic", "--subscribe", "c="+devtest.Topic(t))
	assert.Contains(t, out, "broker: topic no topic could not be checked\n")
	assert.NotContains(t, out, "does not answer")
	assert.Contains(t, out, "is missing\n", "the others are looked at")
}

// Before the first relay has run there are no topics, and nothing is wrong with that.
func TestDoctorIsCalmBeforeTheFirstRelay(t *testing.T) {
	t.Parallel()
	o, topic := newOperator(t), devtest.Topic(t)
	o.run(cli.ExitOK, "migrate", "up")
	o.publish(topic, "key")
	ask := []string{"doctor", "--ignore", "server", "--broker", "kafka", "--brokers=" + strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ",")}
	out := o.run(cli.ExitFailed, ask...)
	assert.Contains(t, out, "and no relay runs\n")
	assert.NotContains(t, out, "broker: ")
	assert.Contains(t, out, "Note: Topic "+topic+" does not exist yet, and no relay runs: ")
	o.exec(`insert into {schema}.outbox_relay (relay_id, name, expires_at) values (gen_random_uuid(), 'relay', now() + interval '1 hour')`)
	assert.Contains(t, o.run(cli.ExitFailed, ask...), "broker: topic "+topic+" is missing\n")
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	assert.Contains(t, o.run(cli.ExitUsage, "doctor", "--ignore", "nothing"), "--ignore has \"nothing\": want schema, server, ")
	assert.Contains(t, o.run(cli.ExitUsage, "doctor", "--broker", "rabbit"), "want pubsub or kafka")
	assert.Contains(t, o.run(cli.ExitUsage, "doctor", "--subscribe", "a=b"), "--subscribe needs --broker pubsub or kafka, or a configuration with one of them\n")
	assert.Contains(t, o.run(cli.ExitUsage, "doctor", "--broker", "kafka", "--subscribe", "a"), "want CONSUMER=TOPIC")
	o.run(cli.ExitOK, "migrate", "up")
	assert.Contains(t, o.run(cli.ExitFailed, "doctor", "--retention", "24h"), "window: ")
	assert.Contains(t, says(t, cli.ExitUsage, "doctor", "--schema", `x'"`), "--schema")
	assert.Contains(t, says(t, cli.ExitUsage, "doctor", "--config", "nowhere.yaml"), "there is no configuration file", "1 would mean that something was found")
	o.dsn = "postgres://127.0.0.1:1/x"
	assert.Contains(t, o.run(cli.ExitUsage, "doctor"), "no PostgreSQL answers at 127.0.0.1:1: ")
}

// What the broker tells: topics, subscriptions, and how far a consumer is behind.
func TestDoctorAsksTheBroker(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", devtest.Start(t, devstack.PubSub).PubSubHost())
	for broker, flag := range map[string]string{
		"PubSub": "--project=millrace-test", "Kafka": "--brokers=" + strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ","),
	} {
		t.Run(broker, func(t *testing.T) {
			o, topic, consumer := newOperator(t), devtest.Topic(t), devtest.Project(t)
			o.run(cli.ExitOK, "migrate", "up")
			kind := map[string]string{"PubSub": "pubsub", "Kafka": "kafka"}[broker]
			args := []string{"--broker", kind, flag, "--subscribe", consumer + "=" + topic, "--ignore", "server"}
			assert.Contains(t, o.run(cli.ExitFailed, append([]string{"doctor"}, args...)...), "broker: topic "+topic+" is missing\n")

			dead := devtest.Topic(t)
			tr, err := connectors[broker](t, consumer, dead)
			require.NoError(t, err)
			defer func() { require.NoError(t, tr.Close()) }()
			p, err := tr.Publisher()
			require.NoError(t, err)
			require.NoError(t, p.Publish(topic, message.NewMessage("1", []byte("x")), message.NewMessage("2", []byte("x"))))
			assert.Contains(t, o.run(cli.ExitFailed, append([]string{"doctor"}, args...)...), "broker: consumer "+consumer+" has no subscription to topic "+topic+"\n")

			sub, err := tr.Subscriber(transport.SubscriberConfig{Consumer: consumer})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			messages, err := sub.Subscribe(ctx, topic)
			require.NoError(t, err)
			require.NoError(t, p.Publish(topic, message.NewMessage("3", []byte("x"))))
			go func() {
				for msg := range messages {
					msg.Ack()
				}
			}()
			require.Eventually(t, func() bool {
				i, err := tr.(transport.Inspector).Inspect(t.Context(), topic, consumer)
				return err == nil && i.Topic && i.Consumer && i.Lag <= 0 && i.Retention == 7*24*time.Hour
			}, time.Minute, 50*time.Millisecond)
			if kind == "kafka" {
				o.healthy(args...)
			} else {
				assert.Equal(t, "No problems found.\nNote: Whether Pub/Sub may forward dead letters of consumer "+consumer+" to topic "+dead+" could not be asked: there is no IAM here, as in an emulator.\n",
					o.run(cli.ExitOK, append([]string{"doctor"}, args...)...))
			}
			require.NoError(t, sub.Close())
			assert.Contains(t, o.run(cli.ExitFailed, append([]string{"doctor", "--retention=48h", "--horizon=1h"}, args...)...),
				"an event may be delivered for 7 days (topic "+topic+", consumer "+consumer+")")
			if kind == "kafka" {
				require.NoError(t, p.Publish(topic, message.NewMessage("4", []byte("x")), message.NewMessage("5", []byte("x"))))
				assert.Contains(t, o.run(cli.ExitFailed, append([]string{"doctor", "--max-backlog=1"}, args...)...), "consumer "+consumer+" is 2 messages behind on topic "+topic)
			}
		})
	}
}

// A message transform runs in Pub/Sub, where it can drop an event or its ID.
func TestDoctorNamesMessageTransforms(t *testing.T) {
	host := devtest.Start(t, devstack.PubSub).PubSubHost()
	t.Setenv("PUBSUB_EMULATOR_HOST", host)
	o, topic := newOperator(t), devtest.Topic(t)
	o.run(cli.ExitOK, "migrate", "up")
	connection, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	_, err = pubsubpb.NewPublisherClient(connection).CreateTopic(t.Context(), &pubsubpb.Topic{
		Name: "projects/millrace-test/topics/" + topic,
		MessageTransforms: []*pubsubpb.MessageTransform{{Transform: &pubsubpb.MessageTransform_JavascriptUdf{JavascriptUdf: &pubsubpb.JavaScriptUDF{
			FunctionName: "redact", Code: "function redact(message, metadata) { return null; }",
		}}}},
	})
	require.NoError(t, err)
	out := o.run(cli.ExitFailed, "doctor", "--ignore", "server", "--broker", "pubsub", "--project=millrace-test", "--subscribe", "orders.notify="+topic)
	assert.Contains(t, out, "broker: a message transform of topic "+topic+" can drop events, or their IDs: JavaScript function redact\n")
	assert.Contains(t, out, "\n  remedy  see that it returns each message that a consumer needs, with all its attributes (_watermill_message_uuid is the event's ID")
}
