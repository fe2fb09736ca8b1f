package transport_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

func TestKey(t *testing.T) {
	msg := message.NewMessage("id", nil)
	require.Empty(t, transport.Key(msg))
	transport.SetKey(msg, "a")
	require.Equal(t, "a", transport.Key(msg))
	transport.SetKey(msg, "b")
	require.Equal(t, "b", transport.Key(msg))
	transport.SetKey(msg, "")
	require.Empty(t, transport.Key(msg))
	require.Empty(t, msg.Metadata, "an empty key leaves no entry")

	literal := &message.Message{}
	transport.SetKey(literal, "")
	require.Empty(t, transport.Key(literal))
	transport.SetKey(literal, "a")
	require.Equal(t, "a", transport.Key(literal))
}

func TestSubscriberConfig(t *testing.T) {
	require.Equal(t, transport.DefaultConcurrency, transport.SubscriberConfig{}.WithDefaults().Concurrency)
	require.Equal(t, 3, transport.SubscriberConfig{Concurrency: 3}.WithDefaults().Concurrency)
	for consumer, valid := range map[string]bool{
		"c": true, "notify-parents_2": true, "a.b": true, "acme.labour.notify": true, "c" + strings.Repeat("x", 200): true,
		"": false, "c" + strings.Repeat("x", 201): false, "2c": false, ".a": false, "a.": false, "a b": false, "ü": false, "a\n": false,
	} {
		err := transport.SubscriberConfig{Consumer: consumer}.Validate()
		require.Equal(t, valid, err == nil, "%q: %v", consumer, err)
	}
	for handler, valid := range map[string]bool{
		"c": true, "notify-parents_2": true, "c" + strings.Repeat("x", 99): true,
		"": false, "c" + strings.Repeat("x", 100): false, "2c": false, "a.b": false, "a b": false, "ü": false, "a\n": false,
	} {
		require.Equal(t, valid, transport.ValidateHandler(handler) == nil, "%q", handler)
	}
	for consumer, handler := range map[string]string{"notify": "notify", "labour.notify": "notify", "acme.labour.notify": "notify"} {
		require.Equal(t, handler, transport.HandlerOf(consumer))
	}
	err := transport.SubscriberConfig{Concurrency: -1}.Validate()
	require.ErrorContains(t, err, "Consumer")
	require.ErrorContains(t, err, "Concurrency is -1")
}

func TestDeliveryFrom(t *testing.T) {
	none := transport.DeliveryFrom(context.Background())
	none.RetryAfter(time.Second)
	none.Handled()
	none.Reject(context.Canceled)
	require.NoError(t, none.Rejected())
	require.Zero(t, none.Attempt())

	third := attempt(3)
	require.Equal(t, third, transport.DeliveryFrom(transport.WithDelivery(context.Background(), third)))
}

type attempt int

func (a attempt) Attempt() int             { return int(a) }
func (a attempt) RetryAfter(time.Duration) {}
func (a attempt) Reject(error)             {}
func (a attempt) Rejected() error          { return nil }
func (a attempt) Handled()                 {}
