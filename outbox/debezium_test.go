package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// debezium is an outbox on a server of the test's own, whose events Debezium publishes, and a consumer under a claim that notes
// each event that it handles.
type debezium struct {
	*fixture
	server    *devstack.Server
	brokers   []string
	topic     string
	published []effect
}

// effect is an event as a handler sees it.
type effect struct {
	ID, Key  string
	Payload  []byte
	Metadata map[string]string
}

const debeziumKeys = 7

func newDebezium(t *testing.T) (d *debezium, config devstack.DebeziumConfig) {
	d = &debezium{brokers: devtest.Real(t, devstack.Kafka).KafkaBrokers(), topic: devtest.Topic(t)}
	d.server = devtest.Postgres(t, devstack.ServerConfig{})
	t.Cleanup(func() { // before it is stopped: a shutdown waits for who reads the WAL
		require.NoError(t, d.server.Crash(context.WithoutCancel(t.Context())))
	})
	pool := devtest.PoolOn(t, d.server.DSN())
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{})
	require.NoError(t, err)
	d.fixture = &fixture{t: t, pool: pool, schema: "millrace", publisher: publisher}
	require.NoError(t, outbox.Migrate(t.Context(), pool, d.schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, d.schema))
	page, err := os.ReadFile("../docs/how-to/debezium.md")
	require.NoError(t, err)
	block := func(language string) string {
		found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
		require.NotNil(t, found, "the page has no %s", language)
		return string(found[1])
	}
	for _, statement := range []string{
		block("sql"),
		`create table effect (place bigint generated always as identity, id text, key text, payload bytea, metadata jsonb)`,
	} {
		_, err = pool.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	// What is not the page's: the addresses here, and names and sizes that suit a broker that tests share.
	config.Worker = map[string]string{}
	for line := range strings.Lines(block("properties")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		config.Worker[name] = value
	}
	config.Worker["bootstrap.servers"] = strings.Join(d.brokers, ",")
	config.Worker["group.id"] = d.topic + ".connect"
	for _, kind := range []string{"config", "offset", "status"} {
		config.Worker[kind+".storage.topic"] = d.topic + "." + kind
		config.Worker[kind+".storage.replication.factor"] = "1"
	}
	config.Worker["offset.storage.partitions"], config.Worker["status.storage.partitions"] = "1", "1"
	config.Worker["session.timeout.ms"], config.Worker["heartbeat.interval.ms"] = "6000", "1000" // a killed worker is given up soon
	require.NoError(t, json.Unmarshal([]byte(block("json")), &config.Connector))
	dsn, err := url.Parse(d.server.DSN())
	require.NoError(t, err)
	config.Connector["database.hostname"], config.Connector["database.port"] = dsn.Hostname(), dsn.Port()
	config.Connector["database.user"] = dsn.User.Username()
	config.Connector["database.password"], _ = dsn.User.Password()
	config.Connector["database.dbname"] = "postgres"
	config.Connector["topic.prefix"] = d.topic
	return d, config
}

// commit publishes events of the next keys in one transaction.
func (d *debezium) commit(ctx context.Context, n int) {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		number := len(d.published)
		e := effect{
			ID: outbox.NewID(), Key: fmt.Sprint("key ", number%debeziumKeys), Payload: fmt.Appendf(nil, "%d \x00\xff ü", number),
			Metadata: map[string]string{"name": "Event", "number": fmt.Sprint(number), "text": "a=\"ü\", {}\n"},
		}
		msgs[i] = message.NewMessage(e.ID, e.Payload)
		for name, value := range e.Metadata {
			msgs[i].Metadata[name] = value
		}
		transport.SetKey(msgs[i], e.Key)
		d.published = append(d.published, e)
	}
	require.NoError(d.t, pgtx.Run(ctx, d.pool, func(ctx context.Context, _ pgx.Tx) error {
		for _, msg := range msgs {
			msg.SetContext(ctx)
		}
		return d.publisher.Publish(d.topic, msgs...)
	}))
}

func (d *debezium) handled() (n int) {
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `select count(*) from effect`).Scan(&n))
	return n
}

// until publishes until so many more events are handled: some of those that it publishes are not.
func (d *debezium) until(more int) {
	d.t.Helper()
	enough := d.handled() + more
	deadline := time.Now().Add(patience)
	for handled := d.handled(); handled < enough; handled = d.handled() {
		require.True(d.t, time.Now().Before(deadline), "%d of %d events are handled", handled, len(d.published))
		if len(d.published)-handled > 500 {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		d.commit(d.t.Context(), 1+len(d.published)%3)
	}
}

func (d *debezium) awaitAll() {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.handled() >= len(d.published) }, patience, 50*time.Millisecond, "events are lost")
}

func (d *debezium) consume(tr *kafka.Transport) {
	guard, err := claim.New(claim.NewPostgresStore(d.pool, claim.Schema(d.schema)), claim.Config{Service: "labour", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(d.t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(d.t, err)
	router.AddMiddleware(guard.Middleware)
	subscriber, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "labour.note", Ordered: true})
	require.NoError(d.t, err)
	router.AddConsumerHandler("labour.note", d.topic, guard.Subscriber("labour.note", subscriber), func(msg *message.Message) error {
		metadata := map[string]string{}
		for name, value := range msg.Metadata {
			if name != transport.KeyMetadata {
				metadata[name] = value
			}
		}
		return pgtx.Queue(msg.Context(), `insert into effect (id, key, payload, metadata) values ($1, $2, $3, $4)`,
			msg.UUID, transport.Key(msg), []byte(msg.Payload), metadata)
	})
	devtest.Run(d.t, router)
}

// byKey are the events of each key, in their order.
func byKey(events []effect) map[string][]effect {
	keys := map[string][]effect{}
	for _, e := range events {
		keys[e.Key] = append(keys[e.Key], e)
	}
	return keys
}

// records counts what is in the topic, and the partitions that the keys have there.
func (d *debezium) records() (n int, partitions map[string]map[int32]bool) {
	client, err := kgo.NewClient(kgo.SeedBrokers(d.brokers...), kgo.ConsumeTopics(d.topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(d.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	last := d.published[len(d.published)-debeziumKeys:] // a relay has published them last, one of each key
	seen := map[string]bool{}
	partitions = map[string]map[int32]bool{}
	for missing := len(last); missing > 0; {
		fetches := client.PollFetches(ctx)
		require.NoError(d.t, ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			if partitions[string(r.Key)] == nil {
				partitions[string(r.Key)] = map[int32]bool{}
			}
			partitions[string(r.Key)][r.Partition] = true
			for _, h := range r.Headers {
				if h.Key == "_watermill_message_uuid" {
					seen[string(h.Value)] = true
				}
			}
		})
		missing = 0
		for _, e := range last {
			if !seen[e.ID] {
				missing++
			}
		}
	}
	return n, partitions
}

// TestDebeziumInPlaceOfTheRelay: Debezium publishes the outbox as docs/how-to/debezium.md configures it, is killed while it
// does, and loses its slot. Each event has its one effect, as it was published and in the order of its key. Rows are deleted only
// when Debezium has confirmed them. Afterwards a relay goes on.
func TestDebeziumInPlaceOfTheRelay(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	d, config := newDebezium(t)
	admin, err := kgo.NewClient(kgo.SeedBrokers(d.brokers...))
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	_, err = kadm.NewClient(admin).CreateTopic(t.Context(), 4, 1, nil, d.topic)
	require.NoError(t, err)
	for range 20 {
		d.commit(t.Context(), 3) // of before Debezium
	}
	connect := devtest.Debezium(t, config)
	tr, err := kafka.New(t.Context(), kafka.Config{Brokers: d.brokers})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	d.consume(tr)

	clean := func(ctx context.Context) (int64, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return outboxadmin.Clean(ctx, d.pool, d.schema, "millrace_outbox", 0)
	}
	d.until(200)
	require.NoError(t, connect.Crash(t.Context()))
	d.commit(t.Context(), 3)
	rows := d.rows()
	hurried, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = clean(hurried)
	require.ErrorContains(t, err, "has not confirmed the WAL")
	require.Equal(t, rows, d.rows(), "rows that Debezium has not confirmed are deleted")
	require.NoError(t, connect.Start(t.Context()))
	d.until(200)

	// The slot is gone, and what is written now is in no slot. The rows are there.
	require.NoError(t, connect.Crash(t.Context()))
	require.Eventually(t, func() bool {
		_, err := d.pool.Exec(t.Context(), `select pg_drop_replication_slot('millrace_outbox')`)
		return err == nil
	}, patience, 50*time.Millisecond)
	for range 20 {
		d.commit(t.Context(), 3)
	}
	rows = d.rows()
	_, err = clean(t.Context())
	require.ErrorContains(t, err, "there is no logical replication slot")
	require.Equal(t, rows, d.rows())
	require.NoError(t, connect.Start(t.Context()))
	d.awaitAll()

	// Another database of the server has a slot, too, which knows nothing of these rows.
	_, err = d.pool.Exec(t.Context(), `create database elsewhere`)
	require.NoError(t, err)
	there := d.pool.Config().ConnConfig.Copy()
	there.Database = "elsewhere"
	elsewhere, err := pgx.ConnectConfig(t.Context(), there)
	require.NoError(t, err)
	_, err = elsewhere.Exec(t.Context(), `select pg_create_logical_replication_slot('elsewhere', 'pgoutput')`)
	require.NoError(t, err)
	_, err = outboxadmin.Clean(t.Context(), d.pool, d.schema, "elsewhere", 0)
	require.ErrorContains(t, err, `there is no logical replication slot "elsewhere" of this database`)
	require.NoError(t, elsewhere.Close(t.Context()))

	rows = d.rows()
	cleaned, err := clean(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, rows, cleaned)
	require.Zero(t, d.rows())

	// A relay takes over.
	require.NoError(t, connect.Stop())
	_, err = d.pool.Exec(t.Context(), `drop publication millrace_outbox`)
	require.NoError(t, err)
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	d.run(d.newRelay(publisher, outbox.RelayConfig{}))
	d.commit(t.Context(), debeziumKeys)
	d.awaitAll()

	found, err := d.pool.Query(t.Context(), `select id, key, payload, metadata from effect order by place`)
	require.NoError(t, err)
	effects, err := pgx.CollectRows(found, pgx.RowToStructByPos[effect])
	require.NoError(t, err)
	require.Equal(t, byKey(d.published), byKey(effects), "lost, doubled, changed or out of order")
	records, partitions := d.records()
	require.Greater(t, records, len(d.published), "the rows were not read again")
	for key, of := range partitions {
		require.Len(t, of, 1, "the partitions of %s, on the way of the relay and of Debezium", key)
	}
	t.Logf("%d events, %d records", len(d.published), records)
}
