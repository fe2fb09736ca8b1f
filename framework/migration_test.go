package framework_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// migrating is the role of a process that publishes, relays and handles while its fleet goes from one broker to another.
const migrating = "migrating"

type migratingConfig struct {
	File, PubSub, Schema, Topic, Consumer string
	Broker, To                            string // To is "" for one that takes part in no migration
	Publishes, Handles                    bool
	Rate                                  int // events a second
}

const (
	migratingKeys  = 5
	migratingQuiet = 15 * time.Second // longer than the subscriptions' acknowledgement deadline
)

func playMigrating(ctx context.Context, c migratingConfig, _ <-chan string) error {
	cfg, err := framework.Load(c.File, pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(c.PubSub)}), kafka.Driver)
	if err != nil {
		return err
	}
	cfg.Broker, cfg.Migration.To = c.Broker, c.To
	svc, err := patientNew(ctx, cfg)
	if err != nil {
		return err
	}
	numbers := framework.Topic[int](c.Topic)
	if c.Handles {
		err = svc.AddHandler(c.Consumer, c.Topic, func(msg *message.Message) error {
			broker := "pubsub"
			if _, ok := transport.OriginFrom(msg.Context())["partition"]; ok {
				broker = "kafka"
			}
			n, err := strconv.Atoi(string(msg.Payload))
			if err != nil {
				return err
			}
			if n%19 == 0 && framework.EventFrom(msg.Context()).Attempt < 2 && time.Now().UnixNano()%2 == 0 {
				return errors.New("fails now and then, and is retried from the table")
			}
			return pgtx.Queue(msg.Context(), `insert into `+c.Schema+`.handled (key, n, broker) values ($1, $2, $3)`, transport.Key(msg), n, broker)
		})
		if err != nil {
			return err
		}
	}
	publish := func(ctx context.Context, tx pgx.Tx, key string) (err error) {
		var n int
		if err = tx.QueryRow(ctx, `update `+c.Schema+`.keys set n = n + 1 where key = $1 returning n`, key).Scan(&n); err != nil {
			return err
		}
		return numbers.Publish(ctx, key, n)
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return svc.Run(ctx) })
	parts.Go(func() error {
		select {
		case <-svc.Running():
			fmt.Println("running")
		case <-ctx.Done():
		}
		pace := time.NewTicker(time.Second / time.Duration(c.Rate))
		defer pace.Stop()
		for i := 0; c.Publishes && ctx.Err() == nil; i++ {
			key := fmt.Sprint("key-", i%migratingKeys)
			if err := svc.Tx(ctx, func(ctx context.Context, tx pgx.Tx) error { return publish(ctx, tx, key) }); err != nil && ctx.Err() == nil {
				return err
			}
			<-pace.C
		}
		return nil
	})
	return parts.Wait()
}

// voyage is a fleet that goes from one broker to another.
type voyage struct {
	*world
	c     migratingConfig
	query brokermigration.Query
	fleet []*role.Process
}

func newVoyage(t *testing.T, from, to string) *voyage {
	w := newWorld(t, "kafka")
	host := devtest.Start(t, devstack.PubSub).PubSubHost()
	w.drivers = []transport.Driver{pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(host)}), kafka.Driver}
	text, err := os.ReadFile(w.file)
	require.NoError(t, err)
	consumer := w.name("number")
	config := strings.NewReplacer("broker: kafka", "broker: "+from, "claim: {max_attempts: 2}", "claim: {max_attempts: 50}").Replace(string(text))
	w.file = file(t, config+fmt.Sprintf("migration: {to: %s, quiet: %s}\nhandlers: {%s: {ordered: true, concurrency: 5}}\n", to, migratingQuiet, consumer))
	v := &voyage{world: w, c: migratingConfig{
		File: w.file, PubSub: host, Schema: w.schema, Topic: w.topic("numbers"), Consumer: consumer, Broker: from, To: to, Publishes: true, Handles: true, Rate: 10,
	}}
	_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`create table {s}.keys (key text primary key, n int not null);
		insert into {s}.keys select 'key-' || n, 0 from generate_series(0, 4) n;
		create table {s}.handled (seq bigserial, key text not null, n int not null, broker text not null)`, "{s}", w.schema))
	require.NoError(t, err)
	w.migrated()
	cfg, err := framework.Load(w.file, w.drivers...)
	require.NoError(t, err)
	brokers, err := cfg.OpenBrokers(t.Context(), transport.Environment{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, brokers.From.Close())
		assert.NoError(t, brokers.To.Close())
	})
	v.query = brokermigration.Query{Pool: w.pool, Schema: w.schema, From: brokers.From, To: brokers.To, Quiet: migratingQuiet}
	return v
}

// start starts a process, and waits until it runs.
func (v *voyage) start(c migratingConfig) *role.Process {
	v.t.Helper()
	var said output
	p, err := role.Start(migrating, c, &said, &said)
	require.NoError(v.t, err)
	v.t.Cleanup(func() {
		p.Kill()
		if v.t.Failed() {
			said.mu.Lock()
			defer said.mu.Unlock()
			fmt.Fprintln(os.Stderr, said.text.String())
		}
	})
	require.Eventually(v.t, func() bool { return said.has("running") }, 3*wait, 20*time.Millisecond, "a process that runs")
	v.fleet = append(v.fleet, p)
	return p
}

// kill kills the oldest process, and starts another.
func (v *voyage) kill() {
	v.t.Helper()
	v.fleet[0].Kill()
	v.fleet = v.fleet[1:]
	v.start(v.c)
}

// sail makes a step once it is safe, kills a process on the way, and then another.
func (v *voyage) sail(goBack bool, want brokermigration.Phase) {
	v.t.Helper()
	v.kill()
	var s brokermigration.Status
	require.Eventually(v.t, func() bool {
		var err error
		s, err = brokermigration.Step(v.t.Context(), v.query, goBack, "test")
		if err != nil && !errors.Is(err, brokermigration.ErrBlocked) {
			v.t.Log(err) // a broker that is busy
		}
		return err == nil
	}, 6*wait, 200*time.Millisecond, "a step to %s", want)
	v.t.Log("step from ", s.Phase, " to ", want)
	v.kill()
	now, err := brokermigration.ReadRecord(v.t.Context(), v.pool, v.schema)
	require.NoError(v.t, err)
	require.Equal(v.t, want, now.Phase)
}

// handled waits until a broker has delivered so many more events.
func (v *voyage) handled(broker string, more int) {
	v.t.Helper()
	count := fmt.Sprintf(`select count(*) from {s}.handled where broker = '%s'`, broker)
	n := v.get(count) + more
	require.Eventually(v.t, func() bool { return v.get(count) >= n }, 3*wait, 50*time.Millisecond, "%d events from %s", more, broker)
}

// verdict counts the events that were handled never, twice, and after a later one of their key that came from the other broker.
func (v *voyage) verdict() (lost, doubled, overtaken int) {
	return v.get(`select (select sum(n) from {s}.keys) - (select count(distinct (key, n)) from {s}.handled)`),
		v.get(`select count(*) - count(distinct (key, n)) from {s}.handled`),
		v.get(`select count(*) from {s}.handled a where exists (
			select from {s}.handled b where b.key = a.key and b.n > a.n and b.seq < a.seq and b.broker <> a.broker)`)
}

func (v *voyage) settled() {
	v.t.Helper()
	require.Eventually(v.t, func() bool {
		return v.get(`select (select sum(n) from {s}.keys) - (select count(distinct (key, n)) from {s}.handled)`) == 0
	}, 4*wait, 100*time.Millisecond, "all events are handled")
}

// A fleet goes from one broker to the other, back, and there again, while its processes are killed at each step. Each event has its
// effect once, and none overtakes an earlier one of its key that came from the other broker. At the end processes run that know
// only the new broker.
func TestBrokerMigration(t *testing.T) {
	t.Parallel()
	for _, way := range [][2]string{{"pubsub", "kafka"}, {"kafka", "pubsub"}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			t.Parallel()
			v := newVoyage(t, way[0], way[1])
			v.c.Rate = devtest.Storm(10, 3)
			before := v.c
			before.To = ""
			old := v.start(before)
			v.handled(way[0], 10)
			v.start(v.c)
			v.start(v.c)

			s, err := brokermigration.Step(t.Context(), v.query, false, "test")
			require.ErrorIs(t, err, brokermigration.ErrBlocked)
			assert.Regexp(t, fmt.Sprintf(`:%d:\w+( of service [\w-]+)? takes no part in the migration`, old.PID()), fmt.Sprint(s.Next.Blocked))

			v.sail(false, brokermigration.Drain) // kills that process
			v.sail(true, brokermigration.Consume)
			v.handled(way[0], 10)
			v.sail(false, brokermigration.Drain)
			v.sail(false, brokermigration.Publish)
			v.handled(way[1], 10)
			v.sail(true, brokermigration.Return)
			v.sail(true, brokermigration.Consume)
			v.handled(way[0], 10)
			v.sail(false, brokermigration.Drain)
			v.sail(false, brokermigration.Publish)
			v.handled(way[1], 10)
			v.sail(false, brokermigration.Cut)

			after := v.c
			after.Broker, after.To = way[1], ""
			v.start(after)
			for _, p := range slices.Clone(v.fleet[:3]) {
				p.Kill()
			}
			v.handled(way[1], 10)
			v.fleet[3].Kill()
			after.Publishes = false
			v.start(after)
			v.settled()
			lost, doubled, overtaken := v.verdict()
			assert.Zero(t, lost, "lost")
			assert.Zero(t, doubled, "doubled")
			assert.Zero(t, overtaken, "overtaken")
			t.Log(v.get(`select count(*) from {s}.handled where broker = 'pubsub'`), " events came from Pub/Sub, ", v.get(`select count(*) from {s}.handled where broker = 'kafka'`), " from Kafka")
		})
	}
}

// A process without the migration is suspended for so long that the database forgets it, and the fleet goes to the other broker. When it
// wakes up, it ends, and nothing that it had begun overtakes.
func TestBrokerMigrationWhileAProcessIsSuspended(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	v := newVoyage(t, "kafka", "pubsub")
	before := v.c
	before.To, before.Handles, before.Publishes = "", false, false // it forwards what the other one publishes
	old := v.start(before)
	v.start(v.c)
	v.handled("kafka", 5)
	require.NoError(t, syscall.Kill(old.PID(), syscall.SIGSTOP))
	for _, want := range []brokermigration.Phase{brokermigration.Drain, brokermigration.Publish} {
		require.Eventually(t, func() bool {
			_, err := brokermigration.Step(t.Context(), v.query, false, "test")
			return err == nil
		}, 6*wait, 200*time.Millisecond, "a step to %s", want)
	}
	v.handled("pubsub", 5)
	require.NoError(t, syscall.Kill(old.PID(), syscall.SIGCONT))
	select {
	case <-old.Ended():
		require.Error(t, old.Err())
	case <-time.After(3 * wait):
		require.Fail(t, "it runs")
	}
	v.handled("pubsub", 5)
	v.fleet[1].Kill()
	after := v.c
	after.Publishes = false
	v.start(after)
	v.settled()
	lost, doubled, overtaken := v.verdict()
	assert.Zero(t, lost, "lost")
	assert.Zero(t, doubled, "doubled")
	assert.Zero(t, overtaken, "overtaken")
}

// Without the drain events overtake: the record is changed while events wait in the old broker.
func TestBrokerMigrationControl(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	v := newVoyage(t, "kafka", "pubsub")
	first := v.start(v.c) // whose subscriptions get what is published from then on
	v.handled("kafka", 5)
	first.Kill()
	publisher := v.c
	publisher.Handles = false
	p := v.start(publisher)
	published := func(more int) {
		n := v.get(`select sum(n) from {s}.keys`) + more
		v.eventually("events are published", func() bool {
			return v.get(`select (select sum(n) from {s}.keys) - (select count(*) from {s}.outbox)`) >= n
		})
	}
	published(100)
	_, err := v.pool.Exec(t.Context(), `insert into `+v.schema+`.outbox_broker (epoch, from_name, to_name, phase) values (1, 'kafka', 'pubsub', 'publish')`)
	require.NoError(t, err)
	v.eventually("the process knows the step", func() bool { return v.get(`select max(epoch) from {s}.outbox_broker_process`) == 1 })
	published(100)
	p.Kill()
	consumer := v.c
	consumer.Publishes = false
	v.start(consumer)
	v.settled()
	_, _, overtaken := v.verdict()
	assert.Positive(t, overtaken)
}

// A process whose configuration does not go with the migration is refused, and told what is right.
func TestBrokerMigrationRefuses(t *testing.T) {
	t.Parallel()
	v := newVoyage(t, "kafka", "pubsub")
	_, err := v.pool.Exec(t.Context(), `insert into `+v.schema+`.outbox_broker (epoch, from_name, to_name, phase) values (1, 'kafka', 'pubsub', 'publish')`)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*framework.Config)
		want   string
	}{
		"no migration":    {func(c *framework.Config) { c.Migration.To = "" }, "in migration from kafka to pubsub, phase publish, and the configuration has broker: kafka and no migration: want broker: kafka and migration: {to: pubsub}"},
		"the new broker":  {func(c *framework.Config) { c.Broker, c.Migration.To = "pubsub", "" }, "want broker: kafka and migration: {to: pubsub}"},
		"the other way":   {func(c *framework.Config) { c.Broker, c.Migration.To = "pubsub", "kafka" }, "the configuration has broker: pubsub and migration: {to: kafka}"},
		"the same broker": {func(c *framework.Config) { c.Migration.To = "kafka" }, "Config.Migration.To is \"kafka\", as Config.Broker"},
		"memory":          {func(c *framework.Config) { c.Migration.To = "memory" }, "want two brokers that outlive a process"},
		"quiet":           {func(c *framework.Config) { c.Migration.Quiet = time.Millisecond }, "Config.Migration.Quiet is 1ms"},
		"transactions": {func(c *framework.Config) {
			c.Drivers[1] = kafka.NewDriver(kafka.Config{Delivery: kafka.Transactional})
		}, "want kafka.delivery: at_least_once for the migration"},
		"push": {func(c *framework.Config) {
			push := &pubsub.Push{Endpoint: "https://labour.example/pubsub", ServiceAccount: "pubsub@labour.example"}
			c.Drivers[0] = pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(devtest.Start(t, devstack.PubSub).PubSubHost()), Subscription: pubsub.SubscriptionConfig{Push: push}})
		}, "Config.Migration.To is \"pubsub\" beside consumers with push, which do not work in a migration: want none until it has ended: remove pubsub.subscription.push"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := v.config()
			cfg.Drivers = slices.Clone(cfg.Drivers)
			c.change(&cfg)
			svc, err := patientNew(t.Context(), cfg)
			if !assert.Error(t, err) {
				require.NoError(t, svc.Close())
				return
			}
			assert.Contains(t, err.Error(), c.want)
		})
	}
	require.NoError(t, v.service(v.config()).Close(), "one that goes with it")
}
