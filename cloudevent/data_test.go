package cloudevent_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cloudevent"
)

// JSON may have bytes that are no text. The event arrives as it is.
func TestJSONThatIsNoText(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		e := samples(t)["JSON"]
		require.NoError(t, e.SetData("application/json", []byte("{\"a\": \"\xff\"}")))
		msg, err := cloudevent.ToMessage(e, cloudevent.Kafka, mode)
		require.NoError(t, err)
		read, err := cloudevent.FromMessage(msg)
		require.NoError(t, err)
		assert.Equal(t, e.Data(), read.Data())
	}
}

// In structured mode such an extension would replace the data.
func TestDataIsNoExtension(t *testing.T) {
	t.Parallel()
	const want = `attribute "data" is an extension: want another name`
	for _, mode := range modes {
		e := samples(t)["least"]
		e.SetExtension("data", "x")
		_, err := cloudevent.ToMessage(e, cloudevent.Kafka, mode)
		assert.ErrorContains(t, err, want)
	}
	_, err := cloudevent.FromMessage(message1(map[string]string{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t", "ce_data": "x"}, "y"))
	assert.ErrorContains(t, err, want)
}
