package main

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/transport"
)

// foreignDelivery is of a message that a foreign producer wrote.
type foreignDelivery struct{ transport.Delivery }

func (foreignDelivery) Origin() transport.Origin {
	return transport.Origin{"topic": "orders", "partition": "3", "offset": "17"}
}

func (foreignDelivery) EventIDError() error {
	return errors.New("no header has one: set ConsumerConfig.EventID (kafka.consumer.event_id)")
}

// TestForeignRecordIsShownWithItsRemedy: an operator who finds an event without an ID learns where it lay and what to set.
func TestForeignRecordIsShownWithItsRemedy(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	msg := message.NewMessage("", []byte("payload"))
	none := transport.DeliveryFrom(context.Background())
	msg.SetContext(transport.WithDelivery(t.Context(), foreignDelivery{none}))
	x.consume(claim.Config{Consumer: func(string) string { return "notify" }}, msg, handled)
	dead, err := deadletter.List(t.Context(), x.pool, x.schema, deadletter.Listing{})
	require.NoError(t, err)
	require.Len(t, dead, 1)
	shown := x.run(cli.ExitOK, "dead", "show", dead[0].EventID)
	assert.Contains(t, shown, "error     the message has no event ID: no header has one: set ConsumerConfig.EventID (kafka.consumer.event_id)\n")
	assert.Contains(t, shown, "origin    offset=17\norigin    partition=3\norigin    topic=orders\n")
	assert.Contains(t, x.run(cli.ExitOK, "explain", dead[0].EventID), "It has no usable event ID. ")
	assert.Contains(t, x.run(cli.ExitFailed, "doctor"),
		"  remedy  1 dead letter has no event ID: before a replay set kafka.consumers.NAME.event_id (in Go, kafka.ConsumerConfig.EventID)")
}
