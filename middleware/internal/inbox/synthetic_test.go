package inbox

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
)

func TestSyntheticID(t *testing.T) {
	id := Synthetic("topic", message.NewMessage("", []byte("payload")), nil)
	assert.Equal(t, "malformed:8a1f", id[:14], "it must never change: redeliveries would not coincide")
	other := message.NewMessage("", []byte("payload"))
	other.Metadata.Set("a", "b")
	assert.NotEqual(t, id, Synthetic("topic", other, nil))
}
