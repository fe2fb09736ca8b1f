package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	tr := connect(t, kafka.Config{Brokers: brokers(t)})
	inspect := func(consumer string) transport.Inspection {
		i, err := tr.Inspect(t.Context(), topic, consumer)
		require.NoError(t, err)
		return i
	}
	assert.Equal(t, transport.Inspection{Lag: -1}, inspect("consumer"), "and it is not made by that")
	assert.Equal(t, transport.Inspection{Lag: -1}, inspect(""))
	assertNoError(t, batcher(t, tr).Publish(topic, newMessage("1", "x"), newMessage("2", "x")))
	assert.Equal(t, transport.Inspection{Topic: true, Lag: -1, Retention: 7 * 24 * time.Hour}, inspect(""))
	assert.Equal(t, transport.Inspection{Topic: true, Lag: 2, Retention: 7 * 24 * time.Hour}, inspect("consumer-"+devtest.Project(t)), "it has handled nothing")
	_, err := tr.Inspect(t.Context(), "no topic", "")
	require.Error(t, err)
}
