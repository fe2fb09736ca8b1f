package framework_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// copying is the role of a process that copies events from topic to topic, in two handlers, without a database.
const copying = "copying"

type copyingConfig struct {
	Brokers []string
	Service string
	Topics  [3]string
	Once    bool   // false: Kafka's default delivery, without a claim
	DSN     string // of a database; empty: none
	Schema  string
	Poison  *step // ends the process of its first handler
}

// step is the event: the Nth of its key.
type step struct {
	Key string
	N   int
}

func playCopying(ctx context.Context, c copyingConfig, _ <-chan string) error {
	own := kafka.Config{Brokers: c.Brokers, Consumer: kafka.ConsumerConfig{SessionTimeout: 6 * time.Second}}
	if !c.Once {
		return c.copyAtLeastOnce(ctx, own)
	}
	own.Delivery = kafka.Transactional
	svc, err := patientNew(ctx, framework.Config{
		Service: c.Service, Broker: "kafka", Drivers: []transport.Driver{kafka.NewDriver(own)}, HTTP: framework.HTTP{Address: "127.0.0.1:0"},
		Postgres: framework.Postgres{Disabled: c.DSN == "", DSN: c.DSN, Schema: c.Schema, Migrate: c.DSN != ""},
		Handlers: map[string]framework.Handler{"copy-0": {Ordered: true}, "copy-1": {Ordered: true}},
	})
	if err != nil {
		return err
	}
	for i := range 2 {
		to := framework.Topic[step](c.Topics[i+1])
		err := framework.Handle(svc, fmt.Sprintf("copy-%d", i), framework.Topic[step](c.Topics[i]), func(ctx context.Context, s step) error {
			if c.Poison != nil && s == *c.Poison {
				os.Exit(3)
			}
			return to.Publish(ctx, s.Key, s)
		})
		if err != nil {
			return err
		}
	}
	return svc.Run(ctx)
}

// copyAtLeastOnce does the same without transactions.
func (c copyingConfig) copyAtLeastOnce(ctx context.Context, own kafka.Config) error {
	k, err := kafka.New(ctx, own)
	if err != nil {
		return err
	}
	publisher, err := k.Publisher()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	for i := range 2 {
		name := fmt.Sprintf("copy-%d", i)
		sub, err := k.Subscriber(transport.SubscriberConfig{Consumer: c.Service + "." + name, Ordered: true})
		if err != nil {
			return err
		}
		router.AddHandler(name, c.Topics[i], sub, c.Topics[i+1], publisher, func(msg *message.Message) ([]*message.Message, error) {
			return message.Messages{msg.Copy()}, nil
		})
	}
	return router.Run(ctx)
}

// copied is what a reader of its own, by another library, sees committed at the end of the way.
type copied struct {
	mu   sync.Mutex
	seen map[string][]int // by key
	all  int
}

func (c *copied) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

func (c *copied) doubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, list := range c.seen {
		if len(slices.Compact(slices.Sorted(slices.Values(list)))) < len(list) {
			return true
		}
	}
	return false
}

// journey is a test of copying.
type journey struct {
	*testing.T
	config  copyingConfig
	broker  *kafka.Transport
	copied  copied
	process *role.Process
	sent    int
}

func newJourney(t *testing.T, once bool, changes ...func(*copyingConfig)) *journey {
	t.Helper()
	prefix := devtest.Topic(t)
	j := &journey{T: t, config: copyingConfig{
		Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Service: strings.ReplaceAll(prefix, ".", "-"),
		Topics: [3]string{prefix + ".in", prefix + ".between", prefix + ".out"}, Once: once,
	}, copied: copied{seen: map[string][]int{}}}
	for _, change := range changes {
		change(&j.config)
	}
	var err error
	j.broker, err = kafka.New(t.Context(), kafka.Config{Brokers: j.config.Brokers})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, j.broker.Close()) })
	sub, err := j.broker.Subscriber(transport.SubscriberConfig{Consumer: "topics"})
	require.NoError(t, err)
	for _, topic := range j.config.Topics {
		require.NoError(t, sub.(message.SubscribeInitializer).SubscribeInitialize(topic))
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(j.config.Brokers...), kgo.ConsumeTopics(j.config.Topics[2]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				var s step
				if json.Unmarshal(r.Value, &s) != nil {
					s.Key = "(none: " + string(r.Value) + ")"
				}
				j.copied.mu.Lock()
				defer j.copied.mu.Unlock()
				j.copied.seen[s.Key] = append(j.copied.seen[s.Key], s.N)
				j.copied.all++
			})
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		reader.Close()
	})
	j.start()
	return j
}

func (j *journey) start() {
	j.Helper()
	var said output
	p, err := role.Start(copying, j.config, &said, &said)
	require.NoError(j, err)
	j.process = p
	j.Cleanup(func() {
		p.Kill()
		if j.Failed() {
			fmt.Fprintln(os.Stderr, said.text.String())
		}
	})
}

const (
	journeyKeys = 20
	journeyWave = 2_000
)

// wave publishes some events of each key.
func (j *journey) wave() {
	j.Helper()
	j.publish(journeyWave)
}

func (j *journey) publish(events int) {
	j.Helper()
	p, err := j.broker.PlainPublisher()
	require.NoError(j, err)
	msgs := make([]*message.Message, events)
	for i := range msgs {
		s := step{fmt.Sprintf("key-%d", i%journeyKeys), (j.sent + i) / journeyKeys}
		payload, err := json.Marshal(s)
		require.NoError(j, err)
		msgs[i] = message.NewMessage(watermill.NewUUID(), payload)
		transport.SetKey(msgs[i], s.Key)
	}
	require.NoError(j, p.Publish(j.config.Topics[0], msgs...))
	j.sent += events
}

// killed kills the process when something of the last wave has arrived, and starts another one.
func (j *journey) killed() {
	j.Helper()
	before := j.sent - journeyWave
	j.eventually("the first events of the wave", func() bool { return j.copied.count() > before })
	require.True(j, j.process.Kill())
	j.start()
}

func (j *journey) eventually(what string, condition func() bool) {
	j.Helper()
	require.Eventually(j, condition, 3*time.Minute, 5*time.Millisecond, what)
}

// A service without a database copies each event once and in the order of its key, however often it is killed.
func TestWithoutPostgresExactlyOnce(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	j := newJourney(t, true)
	for range 4 {
		j.wave()
		j.killed()
	}
	j.eventually("all events", func() bool { return j.copied.count() >= j.sent })
	j.wave() // what came twice before it has been read when it has
	j.eventually("the last events", func() bool { return j.copied.count() >= j.sent })
	j.copied.mu.Lock()
	defer j.copied.mu.Unlock()
	require.Len(t, j.copied.seen, journeyKeys, "%v", slices.Sorted(maps.Keys(j.copied.seen)))
	for key, list := range j.copied.seen {
		for i, n := range list {
			require.Equal(t, i, n, "%s: one is lost, doubled or out of order", key)
		}
		require.Len(t, list, j.sent/journeyKeys, key)
	}
}

// The control: with Kafka's default delivery, and without a claim, the same kills double events.
func TestWithoutPostgresAtLeastOnceDoubles(t *testing.T) {
	t.Parallel()
	j := newJourney(t, false)
	began := time.Now()
	for !j.copied.doubled() {
		require.Less(t, time.Since(began), 5*time.Minute, "no kill has doubled anything")
		j.wave()
		j.killed()
		before := j.sent
		j.eventually("all events", func() bool { return j.copied.count() >= before })
	}
}
