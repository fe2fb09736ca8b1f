package kafka_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	// poisonable is the role of a process that copies.
	poisonable = "poisonable"
	begun      = "the first message\n"
)

type poisonableConfig struct {
	Brokers     []string
	In, Out     string
	Consumer    string
	Poison      string // the payload that ends the process
	Concurrency int
	Handler     time.Duration // how long a message takes
	MaxInFlight int           // small, so that few messages run alone
	DeadLetters string
}

func playPoisonable(ctx context.Context, c poisonableConfig, _ <-chan string) error {
	copies := &copying{brokers: c.Brokers, out: c.Out}
	config := copies.config(kafka.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	config.Transaction.Timeout = time.Second
	config.Transaction.MaxRecords = c.MaxInFlight
	config.Consumer.Prefetch = c.MaxInFlight
	tr, err := kafka.New(ctx, config)
	if err != nil {
		return err
	}
	publisher, err := tr.Publisher()
	if err != nil {
		return err
	}
	subscriber, err := tr.Subscriber(transport.SubscriberConfig{Consumer: c.Consumer, Concurrency: c.Concurrency, Ordered: true})
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(ctx, c.In)
	if err != nil {
		return err
	}
	first := sync.OnceFunc(func() { _, _ = io.WriteString(os.Stdout, begun) })
	var handlers sync.WaitGroup
	for msg := range messages {
		handlers.Go(func() {
			first()
			if string(msg.Payload) == c.Poison {
				os.Exit(3)
			}
			if c.Handler > 0 {
				<-time.After(c.Handler)
			}
			if copies.copy(msg, publisher) == nil {
				msg.Ack()
			} else {
				msg.Nack()
			}
		})
	}
	handlers.Wait()
	return tr.Close()
}

// victims are processes that die one after another, each in the group of the one before.
type victims struct {
	*copying
	*testing.T
	config poisonableConfig
	other  *copying // from another topic of the same pattern, or nil
}

func newVictims(t *testing.T, n int, config poisonableConfig) *victims {
	t.Helper()
	c := newCopying(t, brokers(t), n)
	config.Brokers, config.In, config.Out, config.Consumer = c.brokers, c.in, c.out, c.consumer
	return &victims{copying: c, T: t, config: config}
}

// lag is that of all topics.
func (v *victims) lag(t *testing.T) int64 {
	t.Helper()
	lag := v.copying.lag(t)
	if v.other != nil {
		lag += v.other.lag(t)
	}
	return lag
}

// victim is a process.
type victim struct {
	*role.Process
	begun chan struct{} // closed when its first handler has
}

// Write implements io.Writer: the process says that it has begun.
func (v *victim) Write(b []byte) (int, error) {
	if strings.Contains(string(b), begun) {
		close(v.begun)
	}
	return len(b), nil
}

func (v *victims) start() *victim {
	v.Helper()
	p := &victim{begun: make(chan struct{})}
	var err error
	p.Process, err = role.Start(poisonable, v.config, p, v.Output())
	require.NoError(v, err)
	v.Cleanup(func() { p.Kill() })
	return p
}

// expel has the group forget its dead members, for which it would wait.
func (v *victims) expel() {
	v.Helper()
	require.EventuallyWithT(v, func(t *assert.CollectT) {
		groups, err := v.admin.DescribeGroups(v.Context(), v.consumer)
		require.NoError(t, err)
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group = v.consumer
		for _, m := range groups[v.consumer].Members {
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			leave.Members = append(leave.Members, member)
		}
		if len(leave.Members) == 0 {
			return
		}
		_, err = leave.RequestWith(v.Context(), v.client)
		require.NoError(t, err)
		t.Errorf("%d members are to leave", len(leave.Members))
	}, wait, tick)
}

// notes are the metadata of the group's offsets.
func (v *victims) notes() (notes []string) {
	v.Helper()
	committed, err := v.admin.FetchOffsets(v.Context(), v.consumer)
	require.NoError(v, err)
	committed.Each(func(o kadm.OffsetResponse) { notes = append(notes, o.Metadata) })
	return notes
}

// accused is, by partition, what the notes tell of messages that run alone.
func (v *victims) accused() map[string]string {
	v.Helper()
	committed, err := v.admin.FetchOffsets(v.Context(), v.consumer)
	require.NoError(v, err)
	accused := map[string]string{}
	committed.Each(func(o kadm.OffsetResponse) {
		if _, alone, some := strings.Cut(o.Metadata, " alone="); some {
			accused[fmt.Sprint(o.Topic, "/", o.Partition)] = alone
		}
	})
	return accused
}

// overwrite has another client commit the same offsets with metadata of its own.
func (v *victims) overwrite(metadata string) {
	v.Helper()
	committed, err := v.admin.FetchOffsets(v.Context(), v.consumer)
	require.NoError(v, err)
	offsets := kadm.Offsets{}
	committed.Offsets().Each(func(o kadm.Offset) {
		o.Metadata = metadata
		offsets.Add(o)
	})
	require.NoError(v, v.admin.CommitAllOffsets(v.Context(), v.consumer, offsets))
}

// dead are the dead letters' payloads.
func (v *victims) dead() []string {
	v.Helper()
	topic := transport.DeadLetterTopic(v.in, v.consumer)
	topics, err := v.admin.ListTopics(v.Context(), topic)
	require.NoError(v, err)
	if topics.Error() != nil {
		require.ErrorIs(v, topics.Error(), kerr.UnknownTopicOrPartition)
		return nil
	}
	return v.read(v.T, topic)
}

// dies starts a process and waits for its end by itself, or until everything is done. It tells whether it has died.
func (v *victims) dies() bool {
	v.Helper()
	p := v.start()
	ended := func() bool {
		select {
		case <-p.Ended():
			return true
		default:
			return false
		}
	}
	require.Eventually(v, func() bool { return ended() || v.lag(v.T) == 0 }, 3*time.Minute, tick)
	if !ended() {
		require.NoError(v, p.Stop(wait))
		return false
	}
	require.ErrorContains(v, p.Err(), "exit status 3")
	v.expel()
	return true
}

// A poison message of sixty ends its process. It becomes a dead letter with the reason killed; the others are copied once each, in the
// order of their keys.
func TestPoisonThatKillsItsProcessIsRejected(t *testing.T) {
	t.Parallel()
	v := newVictims(t, 60, poisonableConfig{Poison: "3:2", Concurrency: 20, MaxInFlight: 100})
	deaths := 0
	for v.dies() {
		deaths++
		require.Less(t, deaths, 12)
	}
	// Two processes while the messages run together, three while it runs alone; and those that got on before they died.
	require.GreaterOrEqual(t, deaths, 7)
	t.Logf("%d processes died", deaths)
	r := v.report(t)
	require.Equal(t, report{read: 59, missing: 1}, r)
	require.Equal(t, []string{"3:2"}, v.dead())
	require.Equal(t, []string{"", "", ""}, v.notes(), "all is given back")

	reader := connect(t, kafka.Config{Brokers: v.brokers})
	_, deads := subscribe(t, reader, transport.DeadLetterTopic(v.in, v.consumer), transport.SubscriberConfig{Consumer: consumerName(t)})
	msg := next(t, deads)
	msg.Ack()
	require.Equal(t, "killed", msg.Metadata[kafka.DeadReasonMetadata])
	require.Equal(t, "3", msg.Metadata[kafka.DeadAttemptsMetadata])
	require.Contains(t, msg.Metadata[kafka.DeadErrorMetadata], "ran alone")
}

// A poison message of one topic of a pattern becomes a dead letter. Nothing accuses the message of the other topic that has the same partition
// number and the same offset.
func TestPoisonInOneTopicOfAPattern(t *testing.T) {
	t.Parallel()
	v := newVictims(t, 60, poisonableConfig{Poison: "3:5", Concurrency: 20, MaxInFlight: 100})
	v.config.In = "^" + regexp.QuoteMeta(v.in)
	other := *v.copying
	other.in, other.n, v.other = v.in+".other", 0, &other
	_, err := v.admin.CreateTopics(t.Context(), copyPartitions, -1, nil, other.in)
	require.NoError(t, err)
	feed := func(n int) {
		for range n {
			record := &kgo.Record{Topic: other.in, Key: []byte("3"), Value: fmt.Appendf(nil, "other:%d", other.n)}
			require.NoError(t, v.client.ProduceSync(t.Context(), record).FirstErr())
			other.n++
		}
	}
	deaths, convicted := 0, false
	for feed(1); v.dies(); feed(1) {
		deaths++
		require.Less(t, deaths, 12)
		for partition, alone := range v.accused() {
			require.NotContains(t, partition, other.in)
			if strings.HasSuffix(alone, ":3") && !convicted {
				convicted = true
				feed(60) // now it has a message with that offset
			}
		}
	}
	require.True(t, convicted)
	v.n += other.n
	require.Equal(t, report{read: v.n - 1, missing: 1}, v.report(t))
	require.Equal(t, []string{"3:5"}, v.dead())
	for _, note := range v.notes() {
		require.Empty(t, note, "all is given back")
	}
}

// The control: where the group forgets the notes, the poison message kills one process after the other. What another client writes in
// their place disturbs nobody.
func TestPoisonKillsForEverWithoutNotes(t *testing.T) {
	t.Parallel()
	v := newVictims(t, 60, poisonableConfig{Poison: "3:2", Concurrency: 20, MaxInFlight: 100})
	for range 12 {
		require.True(t, v.dies())
		v.overwrite("another client's")
	}
	require.Positive(t, v.lag(t))
	require.Empty(t, v.dead())
}

// Somebody kills processes at any time, also again and again before their first messages are committed: no message is accused.
func TestPoisonIsNotFoundWhereSomebodyElseKills(t *testing.T) {
	t.Parallel()
	v := newVictims(t, 3000, poisonableConfig{Concurrency: 10, MaxInFlight: 10, Handler: 5 * time.Millisecond})
	for range 20 {
		if v.lag(t) < 1000 {
			v.feed(t, 2000)
		}
		p := v.start()
		select {
		case <-p.begun:
		case <-time.After(wait):
			require.Fail(t, "the process has got no message")
		}
		fault := time.NewTimer(rand.N(500 * time.Millisecond))
		select {
		case <-fault.C:
		case <-p.Ended():
		}
		require.True(t, p.Kill())
		v.expel()
	}
	require.False(t, v.dies())
	require.Equal(t, report{read: v.n}, v.report(t))
	require.Empty(t, v.dead())
}

// TestStartsAreCountedInALiveMember: a member that gets the partition of a dead one beside its own counts that process, too. It is no
// first join, which is where it once read the group's note.
func TestStartsAreCountedInALiveMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	config := kafka.Config{Delivery: kafka.Transactional, DrainTimeout: time.Second, Consumer: kafka.ConsumerConfig{SessionTimeout: 6 * time.Second}}
	_, survivor := c.join(config)
	wire := newFaultNet(nil)
	config.Dial = wire.dial
	_, dying := c.join(config)
	c.shared(2, 1)
	c.put(0, "0")
	c.put(1, "1")
	next(t, survivor)
	poison := next(t, dying)
	wire.kill()
	again := next(t, survivor)
	require.Equal(t, poison.UUID, again.UUID)
	partition := int32(again.UUID[0] - '0')
	require.Contains(t, c.GroupInfo("c").Commits[c.topic][partition].Metadata, "starts=2")
}
