package step

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// A relay holds many events. One more field would make each take 288 bytes: that is the next size that Go allocates.
func TestEventTakes256Bytes(t *testing.T) {
	t.Parallel()
	assert.LessOrEqual(t, unsafe.Sizeof(Event{}), uintptr(256))
}

// Nothing is sent at the deadline of the lease or later: another relay may have it then.
func TestPublishIsInTimeBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	p := Publish{Deadline: now}
	assert.True(t, p.InTime(now.Add(-1)))
	assert.False(t, p.InTime(now))
	assert.False(t, p.InTime(now.Add(1)))
}
