package step

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// A relay whose machine was suspended for longer than its lease sent what another relay had sent or set aside meanwhile.
func TestPublishIsNotInTimeAfterTheMachineWasSuspended(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := Publish{Deadline: now.Add(5 * time.Second)}
	assert.True(t, p.InTime(now.Add(time.Second)))
	woken := now.Add(time.Second)
	*(*uint64)(unsafe.Pointer(&woken)) += 60 << 30 // a minute has passed, but not by the monotonic clock
	require.Equal(t, time.Minute+time.Second, woken.Round(0).Sub(now.Round(0)))
	require.Equal(t, time.Second, woken.Sub(now))
	assert.False(t, p.InTime(woken))
	setBack := now.Add(10 * time.Second)
	*(*uint64)(unsafe.Pointer(&setBack)) -= 60 << 30
	assert.False(t, p.InTime(setBack))
}
