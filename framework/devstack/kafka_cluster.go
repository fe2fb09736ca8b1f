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
	// Brokers is 1 or 3; each is a controller too. With three, every topic has a replica on each, and a record is acknowledged once two
	// have it, so that any one of them may be down. Default: 3.
	Brokers int

	// Settings are lines of server.properties by name, for all brokers.
	Settings map[string]string

	// Listener adds a listener to each broker; see KafkaCluster.ListenerBrokers. The listener's name is EXTRA. The value is its security
	// protocol, such as SASL_PLAINTEXT, whose settings (listener.name.extra.…) belong in Settings. Default: "", no listener.
	Listener string
}

// KafkaCluster is an Apache Kafka for one caller, whose brokers may be stopped, killed and started again one by one. Like a Stack, it
// leaves nothing behind. Its methods must not be called concurrently.
type KafkaCluster struct {
	id     string // tells it from a cluster of another stack
	source string
	nodes  []*kafkaNode

	stopOnce sync.Once
	stopErr  error
}

// kafkaNode is one broker. Brokers are numbered from 1, in this order.
type kafkaNode struct {
	watchdog *watchdog.Watchdog
	address  string
	listener string // "" if it has none
	gone     bool   // the watchdog is stopped too
}

// StartKafka runs a new cluster and returns once it accepts records. The caller must stop it. The error wraps ErrAbsent if scripts/kafka
// has not been run.
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

// run starts all brokers at once, because none answers before most of them run.
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

// Brokers returns host:port of each broker, without TLS. A restarted broker keeps its address.
func (c *KafkaCluster) Brokers() []string {
	addresses := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addresses[i] = node.address
	}
	return addresses
}

// ListenerBrokers returns host:port of each broker's listener from KafkaConfig.Listener.
func (c *KafkaCluster) ListenerBrokers() []string {
	addresses := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		addresses[i] = node.listener
	}
	return addresses
}

// Source returns the version and the number of brokers.
func (c *KafkaCluster) Source() string { return c.source }

// LogTail returns the end of each broker's log.
func (c *KafkaCluster) LogTail() string {
	tails := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		tails[i] = fmt.Sprintf("broker %d:\n%s", i+1, node.watchdog.Room.Tail())
	}
	return strings.Join(tails, "\n")
}

// Terminate asks a broker, counted from 1, to end (SIGTERM) and returns when it has ended. By then it has handed its leaderships to other
// brokers.
func (c *KafkaCluster) Terminate(ctx context.Context, broker int) error {
	return c.take(ctx, broker, "terminate", (*watchdog.Watchdog).Terminate)
}

// Kill kills a broker, counted from 1 (SIGKILL), like a failure of its machine, except that writes that were not flushed survive. The
// other brokers notice when its session ends: see AwaitFenced.
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

// Start runs a broker again, at the same address and with its old data, and returns once it answers. Its replicas may lag behind: see
// AwaitInSync.
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

// AwaitInSync returns once every broker sees all brokers running and all replicas in sync.
func (c *KafkaCluster) AwaitInSync(ctx context.Context) error {
	return c.agree(ctx, "wait until the brokers are in sync", func(view kafkaview.View) error { return view.InSync(len(c.nodes)) })
}

// AwaitFenced returns once the other brokers no longer list the broker, nor count on it for any partition.
func (c *KafkaCluster) AwaitFenced(ctx context.Context, broker int) error {
	return c.agree(ctx, fmt.Sprintf("wait until broker %d is left out", broker), func(view kafkaview.View) error { return view.Without(int32(broker)) })
}

// agree returns once wanted accepts the view of every broker that is not down.
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

// Stop kills the brokers and waits until everything of them is gone. Further calls return the same result.
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

// kafkaPlan holds the addresses of the brokers and the settings of the cluster.
type kafkaPlan struct {
	brokers     []string // host:port
	controllers []string
	listeners   []string // the extra ones
	protocol    string   // of the extra listeners; "" if there are none
	settings    map[string]string
}

// listener returns the broker's extra listener, or "".
func (p kafkaPlan) listener(place int) string {
	if p.protocol == "" {
		return ""
	}
	return p.listeners[place]
}

// planKafka finds the ports. port is already known to be free.
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
