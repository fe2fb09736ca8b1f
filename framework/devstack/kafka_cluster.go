package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/framework/devstack/internal/kafkaview"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// KafkaConfig configures a KafkaCluster. Its zero value is ready for use.
type KafkaConfig struct {
	// Brokers is 1 or 3; each is a controller too. Of three, every topic is on all, and a record is acknowledged when two
	// have it, so that any one of them may be down. Default: 3.
	Brokers int

	// Settings are lines of server.properties, by name, for all brokers.
	Settings map[string]string

	// Listener adds a listener to each broker, at KafkaCluster.ListenerBrokers. Its name is EXTRA, and its security protocol
	// this one, such as SASL_PLAINTEXT; Settings have what that needs (listener.name.extra.…). Default: "", none.
	Listener string
}

// KafkaCluster is Apache Kafka of its caller's own, whose brokers may be stopped, killed and started again one by one.
// It leaves no more behind than a Stack does. One goroutine at a time may call its methods.
type KafkaCluster struct {
	id     string // by which it is told from one of another stack
	source string
	nodes  []*kafkaNode

	stopOnce sync.Once
	stopErr  error
}

// kafkaNode is one broker. Its number, from 1, is its place in the cluster.
type kafkaNode struct {
	watchdog *watchdog.Watchdog
	address  string
	listener string // "": it has none
	gone     bool   // the watchdog too
}

// StartKafka runs a new cluster and returns once it takes records. The caller stops it. The error wraps ErrAbsent where
// scripts/kafka has not been run.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*KafkaCluster, error) {
	cluster, err := hooks{freePort: machine.QuietPort}.startKafka(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("devstack: start Apache Kafka: %w", err)
	}
	return cluster, nil
}

func (h hooks) startKafka(ctx context.Context, cfg KafkaConfig) (*KafkaCluster, error) {
	if cfg.Brokers == 0 {
		cfg.Brokers = 3
	}
	if cfg.Brokers != 1 && cfg.Brokers != 3 {
		return nil, fmt.Errorf("KafkaConfig.Brokers is %d: want 1 or 3, or 0 for the default of 3", cfg.Brokers)
	}
	home, err := findKafka()
	if err != nil {
		return nil, err
	}
	java, err := machine.FindJava(ctx, 17)
	if err != nil {
		return nil, machine.JavaMissing(home.dir, err)
	}
	return retryPort(h, func(port int) (*KafkaCluster, error) {
		plan, err := h.planKafka(port, cfg)
		if err != nil {
			return nil, err
		}
		c := &KafkaCluster{id: kafkaID(), source: home.source(cfg.Brokers)}
		if err := c.run(ctx, home, java, plan); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		return c, nil
	})
}

// run starts the brokers, all at once because none answers before most of them are there.
func (c *KafkaCluster) run(ctx context.Context, home kafkaHome, java string, plan kafkaPlan) error {
	for i := range plan.brokers {
		r, err := watchdog.NewRoom(string(Kafka), nil)
		if err != nil {
			return err
		}
		steps, err := home.prepare(r, java, c.id, plan, i)
		if err != nil {
			return errors.Join(err, r.Discard())
		}
		w, err := watchdog.Watch(r, steps...)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, &kafkaNode{watchdog: w, address: plan.brokers[i], listener: plan.listener(i)})
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		group.Go(func() error { return node.await(groupCtx, c.answers(node, len(c.nodes))) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.nodes[0].await(ctx, func(ctx context.Context) error { return kafkaview.RoundTrip(ctx, c.Brokers()) })
}

func (c *KafkaCluster) answers(node *kafkaNode, size int) func(context.Context) error {
	return func(ctx context.Context) error { return kafkaview.Ask(ctx, []string{node.address}, c.id, size) }
}

func (n *kafkaNode) await(ctx context.Context, probe func(context.Context) error) error {
	err := n.watchdog.Await(ctx, probe)
	n.gone = err != nil
	return err
}

// Brokers is host:port of each broker, without TLS. The addresses stay the same when a broker is started again.
func (c *KafkaCluster) Brokers() []string {
	addresses := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addresses[i] = node.address
	}
	return addresses
}

// ListenerBrokers is host:port of each broker at KafkaConfig.Listener.
func (c *KafkaCluster) ListenerBrokers() []string {
	addresses := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addresses[i] = node.listener
	}
	return addresses
}

// Source tells the version, and how many brokers there are.
func (c *KafkaCluster) Source() string { return c.source }

// LogTail is the end of each broker's log.
func (c *KafkaCluster) LogTail() string {
	tails := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		tails[i] = fmt.Sprintf("broker %d:\n%s", i+1, node.watchdog.Room.Tail())
	}
	return strings.Join(tails, "\n")
}

// Terminate asks a broker, from 1 on, to end (SIGTERM) and returns when it has: it has handed what it led to others.
func (c *KafkaCluster) Terminate(ctx context.Context, broker int) error {
	return c.take(ctx, broker, "terminate", (*watchdog.Watchdog).Terminate)
}

// Kill kills a broker, from 1 on (SIGKILL), as a failure of its machine does, except that what it has written survives
// unflushed. The others learn of it when its session ends: see AwaitFenced.
func (c *KafkaCluster) Kill(ctx context.Context, broker int) error {
	return c.take(ctx, broker, "kill", (*watchdog.Watchdog).Crash)
}

func (c *KafkaCluster) take(ctx context.Context, broker int, what string, down func(*watchdog.Watchdog, context.Context) error) error {
	node, err := c.node(broker)
	if err == nil {
		err = down(node.watchdog, ctx)
	}
	if err != nil {
		return fmt.Errorf("devstack: %s Kafka broker %d: %w", what, broker, err)
	}
	return nil
}

// Start runs a broker again that is down, at the same address and on the data that it left, and returns once it answers.
// What it missed meanwhile it may not have yet: see AwaitInSync.
func (c *KafkaCluster) Start(ctx context.Context, broker int) error {
	node, err := c.node(broker)
	if err == nil {
		node.gone, err = node.watchdog.Again(ctx, c.answers(node, 1))
	}
	if err != nil {
		return fmt.Errorf("devstack: start Kafka broker %d again: %w", broker, err)
	}
	return nil
}

func (c *KafkaCluster) node(broker int) (*kafkaNode, error) {
	if broker < 1 || broker > len(c.nodes) {
		return nil, fmt.Errorf("there is none of that number: want 1 to %d", len(c.nodes))
	}
	if c.nodes[broker-1].gone {
		return nil, errors.New("it is gone for good")
	}
	return c.nodes[broker-1], nil
}

// AwaitInSync returns once all brokers run and every partition is on all that should have it, in the eyes of each broker.
func (c *KafkaCluster) AwaitInSync(ctx context.Context) error {
	return c.agree(ctx, "wait until the brokers are in sync", func(view kafkaview.View) error { return view.InSync(len(c.nodes)) })
}

// AwaitFenced returns once the others neither name a broker that is down nor expect anything of it.
func (c *KafkaCluster) AwaitFenced(ctx context.Context, broker int) error {
	return c.agree(ctx, fmt.Sprintf("wait until broker %d is left out", broker), func(view kafkaview.View) error { return view.Without(int32(broker)) })
}

// agree returns once every broker that is not down sees the cluster as wanted.
func (c *KafkaCluster) agree(ctx context.Context, what string, wanted func(kafkaview.View) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchdog.StartTimeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.ask(ctx, wanted)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("devstack: %s: %w; at last: %w", what, context.Cause(ctx), err)
		}
	}
}

func (c *KafkaCluster) ask(ctx context.Context, wanted func(kafkaview.View) error) error {
	for i, node := range c.nodes {
		if node.watchdog.IsDown() || node.gone {
			continue
		}
		view, err := kafkaview.Of(ctx, node.address)
		if err == nil {
			err = wanted(view)
		}
		if err != nil {
			return fmt.Errorf("broker %d: %w", i+1, err)
		}
	}
	return nil
}

// Stop kills the brokers and waits until nothing of them is left. Further calls return the same.
func (c *KafkaCluster) Stop() error {
	c.stopOnce.Do(func() {
		errs := make([]error, len(c.nodes))
		var stopping sync.WaitGroup
		for i, node := range c.nodes {
			if !node.gone {
				stopping.Go(func() { errs[i] = node.watchdog.Stop() })
			}
		}
		stopping.Wait()
		c.stopErr = errors.Join(errs...)
	})
	return c.stopErr
}

// kafkaPlan is who is where, and what the settings say of the cluster.
type kafkaPlan struct {
	brokers     []string // host:port
	controllers []string
	listeners   []string // the further ones
	protocol    string   // of the further ones; "": there are none
	settings    map[string]string
}

// listener is the broker's further listener, or "".
func (p kafkaPlan) listener(place int) string {
	if p.protocol == "" {
		return ""
	}
	return p.listeners[place]
}

// planKafka finds the ports; port is one that is free.
func (h hooks) planKafka(port int, cfg KafkaConfig) (kafkaPlan, error) {
	plan := kafkaPlan{settings: cfg.Settings, protocol: cfg.Listener}
	kinds := []*[]string{&plan.brokers, &plan.controllers}
	if cfg.Listener != "" {
		kinds = append(kinds, &plan.listeners)
	}
	taken := map[int]bool{}
	for len(taken) < len(kinds)*cfg.Brokers {
		if !taken[port] {
			kind := kinds[len(taken)/cfg.Brokers]
			*kind = append(*kind, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			taken[port] = true
		}
		var err error
		if port, err = h.port(); err != nil {
			return plan, fmt.Errorf("find a free port: %w", err)
		}
	}
	return plan, nil
}
