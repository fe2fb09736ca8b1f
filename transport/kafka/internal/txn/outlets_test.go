package txn

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// network is a dialer; while it is silent, connections are neither made nor refused.
type network struct {
	silent atomic.Bool
	dials  atomic.Int32
	answer chan struct{}
}

// Dial implements proxy.Dialer.
func (n *network) Dial(network, address string) (net.Conn, error) {
	if n.silent.Load() {
		n.dials.Add(1)
		<-n.answer
	}
	return net.Dial(network, address)
}

// TestSilentBrokerIsAwaitedOnce: a broker takes no connection. Each transaction with an output for it waited 5 s, and so did the
// transactions of all others.
func TestSilentBrokerIsAwaitedOnce(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "topic"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	peers := &network{answer: make(chan struct{})}
	config := sarama.NewConfig()
	config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, peers
	client, err := sarama.NewClient(cluster.ListenAddrs(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	leader, err := client.Leader("topic", 0)
	require.NoError(t, err)
	reach := func(o *outlets) error {
		return placing{o, map[topicPartition]error{}}.reach(topicPartition{"topic", 0}, outlet{writable: []int32{0}})
	}
	o := newOutlets(t.Context(), client, nil, nil, nil)
	t.Cleanup(o.close)
	require.NoError(t, reach(o))

	peers.silent.Store(true)
	require.NoError(t, leader.Close())
	reached := make(chan error)
	for range 100 {
		go func() { reached <- reach(o) }()
		select {
		case err := <-reached:
			require.ErrorIs(t, err, sarama.ErrNotConnected)
		case <-time.After(time.Minute):
			close(peers.answer)
			require.Fail(t, "it waits for the broker", <-reached)
		}
	}
	require.EqualValues(t, 1, peers.dials.Load())
	peers.silent.Store(false)
	close(peers.answer)
	require.Eventually(t, func() bool { return reach(o) == nil }, time.Minute, time.Millisecond)
}
