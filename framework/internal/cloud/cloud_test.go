package cloud

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/framework/internal/payload"
)

// Metadata "Content-Type" was deleted as an entry of CloudEvents, and not read.
func TestEncodeReadsTheContentType(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"content-type", "Content-Type"} {
		for _, mode := range []cloudevent.Mode{cloudevent.Binary, cloudevent.Structured} {
			msg := message.NewMessage("1", []byte("<a/>"))
			msg.Metadata = message.Metadata{payload.TypeMetadata: "T", name: "application/xml"}
			require.NoError(t, Codec{Source: "/shop"}.Encode(mode, msg))
			e, err := cloudevent.FromMessage(msg)
			require.NoError(t, err)
			assert.Equal(t, "application/xml", e.DataContentType(), "%s in %s", name, mode)
		}
	}
}
