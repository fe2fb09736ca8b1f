package framework_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestHandlerOfAPattern: a handler of a pattern gets the events of each topic that matches, and an event tells its topic, also
// when it is redelivered by the claim after a failure.
func TestHandlerOfAPattern(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	tr, err := kafka.New(t.Context(), kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	for _, topic := range []string{w.topic("a"), w.topic("b")} {
		require.NoError(t, publisher.Publish(topic, message.NewMessage(outbox.NewID(), []byte("7"))))
	}
	svc := w.service(w.config())
	var failed atomic.Bool
	told := make(chan string, 3)
	require.NoError(t, handle(svc, w.name("all"), "^"+strings.ReplaceAll(w.topic(""), ".", `\.`), func(ctx context.Context, _ int) error {
		told <- framework.EventFrom(ctx).Topic
		if !failed.Swap(true) {
			return errors.New("the first attempt fails")
		}
		return nil
	}))
	w.start(svc)
	got := map[string]int{}
	w.eventually("both events, one of them twice", func() bool {
		select {
		case topic := <-told:
			got[topic]++
		default:
		}
		return got[w.topic("a")]+got[w.topic("b")] == 3
	})
	require.Len(t, got, 2)
}
