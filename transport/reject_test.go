package transport_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// A rejected message becomes a dead letter, which is kept although nobody has subscribed to the dead-letter topic.
func TestReject(t *testing.T) {
	t.Parallel()
	m := newMemory(t, transport.MemoryConfig{})
	_, messages := subscribe(t, m, "orders", transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	first, second := message.NewMessage("1", []byte("?")), message.NewMessage("2", []byte("{}"))
	for _, msg := range []*message.Message{first, second} {
		transport.SetKey(msg, "k")
	}
	publish(t, m, "orders", first, second)
	msg := <-messages
	transport.DeliveryFrom(msg.Context()).Reject(errors.New("not JSON"))
	transport.DeliveryFrom(msg.Context()).RetryAfter(time.Hour)
	msg.Nack()
	msg = <-messages
	require.Equal(t, "2", msg.UUID, "its key goes on")
	msg.Ack()
	_, deads := subscribe(t, m, "orders.notify.dead-letters", transport.SubscriberConfig{Consumer: "dead-letters"})
	msg = <-deads
	require.Equal(t, "1", msg.UUID)
	require.Equal(t, message.Metadata{"_millrace_key": "k", "millrace_dead_reason": "rejected", "millrace_dead_error": "not JSON"}, msg.Metadata)
	msg.Ack()
}

// A dead letter is sent even if its cause is long or malformed.
func TestRejectKeepsWhatTheBrokersTake(t *testing.T) {
	t.Parallel()
	for _, cause := range []string{"", "a\x00b", "m\xfcller", strings.Repeat("ä", 600), strings.Repeat("x", 999) + "€", strings.Repeat("\xff", 2000)} {
		msg := message.NewMessage("1", nil)
		transport.MarkRejected(msg, errors.New(cause))
		text := msg.Metadata[transport.DeadErrorMetadata]
		assert.LessOrEqual(t, len(text), 1000)
		assert.True(t, utf8.ValidString(text))
		require.NoError(t, transport.CheckText(msg))
		assert.Equal(t, transport.DeadRejected, msg.Metadata[transport.DeadReasonMetadata])
	}
	var r transport.Rejection
	r.Reject(nil)
	require.NoError(t, r.Rejected())
}
