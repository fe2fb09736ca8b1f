package backlog

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// During a backup a look at the backlog took seconds, in a business transaction of each publisher, once a second. Now a look
// that takes long is followed by a longer rest, unless publishers are being refused.
func TestSlowLooksAtTheBacklogAreRare(t *testing.T) {
	t.Parallel()
	b, events := New("schema", 1000), int64(0)
	count := func(context.Context, string, int64) (counted, estimate int64, err error) {
		<-time.After(200 * time.Millisecond)
		return min(events, b.limit), events, nil
	}
	admit := func(at time.Time) (found int64, looked bool) {
		found, err := b.Admit(t.Context(), count, 1, at)
		require.NoError(t, err)
		return found, b.checked.Equal(at)
	}
	now := time.Now()
	for _, look := range []struct {
		at     time.Time
		looked bool
	}{{now, true}, {now.Add(2 * time.Second), false}, {now.Add(time.Hour), true}} {
		found, looked := admit(look.at)
		assert.Zero(t, found)
		assert.Equal(t, look.looked, looked)
	}
	b.limit, events = 6, 7
	found, _ := admit(now.Add(2 * time.Hour))
	assert.EqualValues(t, 7, found)
	found, looked := admit(now.Add(2*time.Hour + backlogInterval))
	assert.EqualValues(t, 7, found)
	assert.True(t, looked, "who is refused is told soon that it is over")
}
