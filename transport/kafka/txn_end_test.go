package kafka_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// inEach is a test of brokers, with each version of transactions.
func inEach(test func(t *testing.T, brokers []string, v txnVersion)) func(*testing.T, []string) {
	return func(t *testing.T, brokers []string) {
		inVersions(t, func(t *testing.T, v txnVersion) { test(t, brokers, v) })
	}
}

// TestNoteTellsWhatCommitted: when the answer to a request is lost, the note that the next holder finds is that of the messages that
// readers get, and what was left open is never read.
func TestNoteTellsWhatCommitted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind kmsg.Key
		what fate
	}{
		"killed before it produces":      {kmsg.Produce, killProcess},
		"the answer to Produce is lost":  {kmsg.Produce, loseAnswer},
		"killed before EndTxn":           {kmsg.EndTxn, killProcess},
		"EndTxn is lost":                 {kmsg.EndTxn, loseRequest},
		"the answer to EndTxn is lost":   {kmsg.EndTxn, loseAnswer},
		"the connection to EndTxn stays": {kmsg.EndTxn, delayAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, inEach(func(t *testing.T, brokers []string, v txnVersion) {
				topic := devtest.Topic(t)
				ready(t, brokers, topic)
				config := v.of(kafka.Config{Brokers: brokers})
				faulty := config
				faulty.Dial = newFaultNet(nth(c.kind, 2, c.what)).dial
				first := transactions(t, faulty, topic, 0)
				require.Empty(t, take(t, first))
				require.NoError(t, commit(t, first, topic, "before", "before"))
				require.ErrorIs(t, commit(t, first, topic, "doubt", "doubt"), transport.ErrUnavailable)
				second := transactions(t, config, topic, 0)
				note := take(t, second)
				require.NoError(t, commit(t, second, topic, "after", "after"))
				want := []string{"ready", "before", "after"}
				if note == "doubt" {
					want = []string{"ready", "before", "doubt", "after"}
				} else {
					require.Equal(t, "before", note)
				}
				require.Equal(t, want, copyingOf(t, brokers).read(t, topic))
			}))
		})
	}
}

// ends are the requests to end a transaction that a cluster has received, in order.
type ends struct {
	mu  sync.Mutex
	all []end
}

type end struct {
	producer int64
	epoch    int16
	commit   bool
}

func endsAt(cluster *kfake.Cluster) *ends {
	e := &ends{}
	cluster.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		request := r.(*kmsg.EndTxnRequest)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, end{request.ProducerID, request.ProducerEpoch, request.Commit})
		return nil, nil, false
	})
	return e
}

func (e *ends) list() []end {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// TestAnEndOfUnknownOutcomeIsSentOnce: the answer to EndTxn does not arrive. In version 1 the next transaction has the same epoch, and a second
// EndTxn would end that one. So none follows before Take has raised the epoch.
func TestAnEndOfUnknownOutcomeIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		what   fate
		commit bool
	}{
		"the answer to a commit is lost": {loseAnswer, true},
		"the answer to a commit is late": {delayAnswer, true},
		"a commit is lost":               {loseRequest, true},
		"the answer to an abort is lost": {loseAnswer, false},
		"the answer to an abort is late": {delayAnswer, false},
		"an abort is lost":               {loseRequest, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inVersions(t, func(t *testing.T, v txnVersion) {
				cluster, topic := fake(t), devtest.Topic(t)
				ready(t, cluster.ListenAddrs(), topic)
				received := endsAt(cluster)
				process := newFaultNet(nth(kmsg.EndTxn, 2, c.what))
				x := transactions(t, v.of(kafka.Config{Brokers: cluster.ListenAddrs(), Dial: process.dial}), topic, 0)
				require.Empty(t, take(t, x))
				require.NoError(t, commit(t, x, topic, "before", "before"))
				before := received.list()
				require.Len(t, before, 1)
				if c.commit {
					require.ErrorIs(t, commit(t, x, topic, "doubt", "doubt"), transport.ErrUnavailable)
				} else {
					refused := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.InvalidRecord, Count: -1})
					require.ErrorIs(t, commit(t, x, topic, "doubt", "doubt"), transport.ErrRejected)
					refused.Remove()
				}
				require.Equal(t, 2, process.count(kmsg.EndTxn))
				doubt := before[0]
				if c.what == loseRequest {
					require.Equal(t, before, received.list())
				} else {
					require.Len(t, received.list(), 2)
					doubt = received.list()[1]
					require.Equal(t, c.commit, doubt.commit)
					require.Equal(t, v.name == txnV1.name, doubt.epoch == before[0].epoch, "version 1 keeps the epoch")
				}
				take(t, x)
				require.Equal(t, 2, process.count(kmsg.EndTxn), "Take ends no transaction")
				for range 2 {
					require.NoError(t, commit(t, x, topic, "after", "after"))
				}
				require.Equal(t, 4, process.count(kmsg.EndTxn))
				for _, later := range received.list()[len(received.list())-2:] {
					require.Equal(t, doubt.producer, later.producer)
					require.Greater(t, later.epoch, doubt.epoch)
					require.True(t, later.commit)
				}
			})
		})
	}
}
