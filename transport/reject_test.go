package transport_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

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
