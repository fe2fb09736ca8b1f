package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A poison message is set aside although events that fail stand before it in its topic: the note of each of them once wiped out
// how many relays had ended over it, and relays ended for ever.
func TestPoisonBehindEventsThatFail(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"with a key": "p", "without a key": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			for _, k := range []string{"f", "g"} {
				w.topic("a").refuse[w.write("a", k, 0).EventID] = errOdd
			}
			poison := w.write("a", key, 0)
			poison.poison = true
			for range 12 {
				w.start()
				w.run(20 * time.Second)
			}
			require.True(t, slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.EventID == poison.EventID }), "%s", w)
			require.Len(t, w.failed, 1)
		})
	}
}
