package claim_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// Watermill's channel redelivers at once what is nacked, and knows of no delay.
func TestNoHotLoopWithoutADelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "1"})
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	var deliveries atomic.Int64
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			deliveries.Add(1)
			return h(msg)
		}
	}, f.middleware(claim.Config{Logger: silent}))
	router.AddConsumerHandler("notify", "topic", channel, f.take)
	stop := f.run(router)
	began := time.Now()
	require.NoError(t, channel.Publish("topic", message.NewMessage("1", nil)))
	f.eventually(func() bool { return deliveries.Load() >= 4 }, "contended, it comes again")
	most := time.Since(began)/(15*time.Millisecond) + 1
	assert.LessOrEqual(t, deliveries.Load(), int64(most))
	require.ErrorIs(t, end(errOops), errOops)
	f.eventually(func() bool { return f.effects()["1"] == 1 }, "it takes effect")
	stop()
}
