package inbox

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever a broker delivers comes back as it was.
func TestHeadersSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		msg := message.NewMessage(text.Draw(t, "id"), nil)
		msg.Metadata = rapid.MapOf(text, text).Draw(t, "metadata")
		b, err := EncodeHeaders(msg, nil)
		require.NoError(t, err)
		h, err := DecodeHeaders(b)
		require.NoError(t, err)
		require.Equal(t, Headers{UUID: msg.UUID, Metadata: msg.Metadata}, h)
	})
	b, err := EncodeHeaders(message.NewMessage("1", nil), nil)
	require.NoError(t, err)
	assert.JSONEq(t, `{"uuid": "1", "metadata": {}}`, string(b))
	for _, bad := range []string{``, `[]`, `{"uuid": "\u0000%"}`, `{"metadata": {"\u0000%": ""}}`, `{"metadata": {"a": "\u0000%"}}`} {
		_, err := DecodeHeaders([]byte(bad))
		assert.ErrorContains(t, err, "the event's headers", bad)
	}
}

func TestWhatATextColumnTakes(t *testing.T) {
	assert.Equal(t, "order-7", OrderKey("order-7"))
	for _, key := range []string{"\xff", "a\x00b", strings.Repeat("k", maxOrderKey+1)} {
		assert.Len(t, OrderKey(key), len("sha256:")+64)
	}
	assert.NotEqual(t, OrderKey("\xff"), OrderKey("\xfe"))
	assert.Equal(t, "ab\uFFFD", Printable("a\x00b\xffcd", 4))
}
