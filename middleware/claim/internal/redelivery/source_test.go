package redelivery

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
)

func TestDue(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("1", nil)
	assert.Zero(t, Due(msg))
	msg.Metadata.Set(outbox.DueMetadata, "2026-03-01T10:00:00.123456Z")
	assert.Equal(t, time.Date(2026, 3, 1, 10, 0, 0, 123456000, time.UTC), Due(msg))
	for _, malformed := range []string{"2026-03-01T10:00:00Z", "2026-03-01T1:00:00.000000Z", "2026-03-01T10:00:00.000000+01:00", "soon"} {
		msg.Metadata.Set(outbox.DueMetadata, malformed)
		assert.Zero(t, Due(msg), malformed)
	}
}
