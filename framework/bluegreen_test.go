package framework_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
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
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// deployed is the role of a process that runs a version of the producer, or of the consumer.
const deployed = "deployed"

// guesses is a consumer of version 1 that decodes whatever comes.
const guesses = -1

type deployedConfig struct {
	File, PubSub, Schema, Topic, Consumer string
	Publishes, Handles                    int // the version; 0: none
	Unknown                               framework.Refusal
}

// playDeployed publishes orders, each in the transaction that inserts it, or bills them, until it is killed.
func playDeployed(ctx context.Context, c deployedConfig, _ <-chan string) error {
	cfg, err := framework.Load(c.File, pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(c.PubSub)}), kafka.Driver)
	if err != nil {
		return err
	}
	cfg.Outbox.Relay = framework.Apart // in the test's own process, which is not killed
	cfg.Handlers = map[string]framework.Handler{c.Consumer: {UnknownVersions: c.Unknown}}
	svc, err := patientNew(ctx, cfg)
	if err != nil {
		return err
	}
	first := framework.Topic[orderPlaced](c.Topic)
	second := framework.Topic[orderPlacedV2](c.Topic, framework.Upcast(1, 2, toCents))
	bill := func(ctx context.Context, id, cents int) error {
		return pgtx.Queue(ctx, `insert into `+c.Schema+`.bills values ($1, $2, $3)`, id, cents, c.Handles)
	}
	switch c.Handles {
	case 1:
		err = framework.Handle(svc, c.Consumer, first, func(ctx context.Context, e orderPlaced) error { return bill(ctx, e.ID, 100*e.Dollars) })
	case 2:
		err = framework.Handle(svc, c.Consumer, second, func(ctx context.Context, e orderPlacedV2) error { return bill(ctx, e.ID, e.Cents) })
	case guesses:
		err = svc.AddHandler(c.Consumer, c.Topic, func(msg *message.Message) error {
			var e orderPlaced
			if err := json.Unmarshal(msg.Payload, &e); err != nil {
				return err
			}
			return bill(msg.Context(), e.ID, 100*e.Dollars)
		})
	}
	if err != nil {
		return err
	}
	order := func(ctx context.Context, tx pgx.Tx) (err error) {
		var id int
		if err = tx.QueryRow(ctx, `insert into `+c.Schema+`.orders (version) values ($1) returning id`, c.Publishes).Scan(&id); err != nil {
			return err
		}
		if c.Publishes == 1 {
			return first.Publish(ctx, strconv.Itoa(id%10), orderPlaced{ID: id, Dollars: id})
		}
		return second.Publish(ctx, strconv.Itoa(id%10), orderPlacedV2{ID: id, Cents: 100 * id})
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return svc.Run(ctx) })
	parts.Go(func() error {
		select {
		case <-svc.Running():
			fmt.Println("running")
		case <-ctx.Done():
		}
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for c.Publishes != 0 && ctx.Err() == nil {
			if err := svc.Tx(ctx, order); err != nil {
				return err
			}
			<-pace.C
		}
		return nil
	})
	return parts.Wait()
}

// deployment is a producer and a consumer, of which each has two versions.
type deployment struct {
	*world
	c deployedConfig
}

func newDeployment(t *testing.T, broker devstack.Service) deployment {
	w := newWorld(t, string(broker))
	_, err := w.pool.Exec(t.Context(), `create table `+w.schema+`.orders (id serial primary key, version int not null);
		create table `+w.schema+`.bills (order_id int not null, cents int not null, version int not null)`)
	require.NoError(t, err)
	w.start(w.service(w.config())) // the relay
	c := deployedConfig{File: w.file, Schema: w.schema, Topic: w.topic("orders"), Consumer: w.name("bill")}
	if broker == devstack.PubSub {
		c.PubSub = devtest.Start(t, devstack.PubSub).PubSubHost()
	}
	return deployment{w, c}
}

// process starts one that publishes or handles a version.
func (d deployment) process(publishes, handles int) *role.Process {
	d.t.Helper()
	c := d.c
	c.Publishes, c.Handles = publishes, handles
	var said output
	p, err := role.Start(deployed, c, &said, &said)
	require.NoError(d.t, err)
	d.t.Cleanup(func() {
		p.Kill()
		if d.t.Failed() {
			fmt.Fprintln(os.Stderr, said.text.String())
		}
	})
	require.Eventually(d.t, func() bool { return said.has("running") }, 3*wait, 20*time.Millisecond, "a process that runs")
	return p
}

// atLeast waits until a count is so high.
func (d deployment) atLeast(n int, count string) {
	d.t.Helper()
	d.eventually(fmt.Sprint(n, " of: ", count), func() bool { return d.get(count) >= n })
}

// verdict waits until each order is settled, and counts those without a bill, those with two, and those with a wrong one.
func (d deployment) verdict() (lost, doubled, wrong int) {
	require.Eventually(d.t, func() bool {
		return d.get(`select count(*) from {s}.claim_failed`) == 0 && d.get(`select count(*) from {s}.orders`) == d.get(`select count(*) from {s}.processed`)
	}, 3*wait, 50*time.Millisecond, "all orders are settled")
	assert.Positive(d.t, d.get(`select count(*) from {s}.orders where version = 1`))
	assert.Positive(d.t, d.get(`select count(*) from {s}.orders where version = 2`))
	return d.get(`select count(*) from {s}.orders where id not in (select order_id from {s}.bills)`),
		d.get(`select count(*) - count(distinct order_id) from {s}.bills`),
		d.get(`select count(*) from {s}.bills where cents <> 100 * order_id`)
}

// producersFirst deploys version 2 of the producer before that of the consumer, and kills each version 1 without a warning. met
// counts the orders of version 2 that a consumer of version 1 has met.
func (d deployment) producersFirst(consumer int, met string) {
	oldConsumer := d.process(0, consumer) // before the first event: a subscription gets what is published from then on
	oldProducer := d.process(1, 0)
	d.atLeast(20, `select count(*) from {s}.bills`)
	producer := d.process(2, 0)
	d.atLeast(10, met)
	oldProducer.Kill()
	d.process(0, 2)
	d.atLeast(10, `select count(*) from {s}.bills where version = 2`)
	oldConsumer.Kill()
	d.atLeast(d.get(`select count(*) from {s}.orders`)+20, `select count(*) from {s}.orders`)
	producer.Kill()
}

// consumersFirst is the other order.
func (d deployment) consumersFirst() {
	oldConsumer := d.process(0, 1)
	oldProducer := d.process(1, 0)
	d.atLeast(20, `select count(*) from {s}.bills`)
	d.process(0, 2)
	d.atLeast(10, `select count(*) from {s}.bills where version = 2`)
	oldConsumer.Kill()
	producer := d.process(2, 0)
	d.atLeast(10, `select count(*) from {s}.orders where version = 2`)
	oldProducer.Kill()
	d.atLeast(d.get(`select count(*) from {s}.orders`)+20, `select count(*) from {s}.orders`)
	producer.Kill()
}

// What waits for a consumer of its version.
const waits = `select count(*) from {s}.claim_failed where state = 'retrying' and reason = 'retry'`

// Producers and consumers are deployed in either order, side by side with those of the version before, which are killed: each
// order has one bill, of the right amount.
func TestBlueGreen(t *testing.T) {
	t.Parallel()
	for _, broker := range []devstack.Service{devstack.PubSub, devstack.Kafka} {
		t.Run(string(broker), func(t *testing.T) {
			t.Parallel()
			for name, deploy := range map[string]func(deployment){
				"consumers first": deployment.consumersFirst,
				"producers first": func(d deployment) { d.producersFirst(1, waits) },
			} {
				t.Run(name, func(t *testing.T) {
					d := newDeployment(t, broker)
					deploy(d)
					lost, doubled, wrong := d.verdict()
					assert.Zero(t, lost, "lost")
					assert.Zero(t, doubled, "doubled")
					assert.Zero(t, wrong, "wrong")
				})
			}
		})
	}
}

// The same deployment loses orders where version 1 ignores what it does not know, and bills nothing for orders where it guesses.
func TestBlueGreenControl(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	t.Run("ignores", func(t *testing.T) {
		d := newDeployment(t, devstack.PubSub)
		d.c.Unknown = framework.Ignore
		d.producersFirst(1, `select (select count(*) from {s}.processed) - (select count(*) from {s}.bills)`)
		lost, _, _ := d.verdict()
		assert.Positive(t, lost)
	})
	t.Run("guesses", func(t *testing.T) {
		d := newDeployment(t, devstack.PubSub)
		d.producersFirst(guesses, `select count(*) from {s}.bills where cents = 0`)
		_, _, wrong := d.verdict()
		assert.Positive(t, wrong)
	})
}
