package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionOfALeavingMember: a member is closed while another one joins, and its handler acks when the group has the next
// generation and the member has not. Its transaction was refused, and the message delivered again, because the member left before
// it learned of that generation.
func TestTransactionOfALeavingMember(t *testing.T) {
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		c := newCopying(t, fake(t).ListenAddrs(), 1)
		goOn, joined := make(chan struct{}), make(chan struct{})
		process := newFaultNet(func(kind kmsg.Key, n int) fate {
			switch {
			case kind == kmsg.SyncGroup && n == 2: // of the next generation
				close(joined)
				<-goOn
			case kind == kmsg.EndTxn && n == 1: // refused in its own generation, the first transaction is aborted
				close(goOn)
			}
			return pass
		})
		var handled atomic.Int32
		handling, ack := make(chan struct{}), make(chan struct{})
		config := v.of(c.config(kafka.Config{Dial: process.dial}))
		config.Transaction.Timeout = 2 * time.Minute
		config.Transaction.MaxDelay = time.Minute // the member commits when it is closed
		p := c.start(t, config, func(msg *message.Message, publisher message.Publisher) error {
			handled.Add(1)
			close(handling)
			<-ack
			return c.copy(msg, publisher)
		})
		<-handling
		other := c.start(t, v.of(c.config(kafka.Config{})), func(msg *message.Message, publisher message.Publisher) error {
			handled.Add(1)
			return c.copy(msg, publisher)
		})
		<-joined
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			p.stop(t)
		}()
		close(ack)
		<-stopped
		require.Eventually(t, func() bool { return c.lag(t) == 0 }, wait, 10*time.Millisecond)
		other.stop(t)
		c.exactlyOnce(t)
		require.Equal(t, int32(1), handled.Load(), "the message was delivered again")
	})
}
