package redelivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

func TestLooksInVainBecomeRare(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, c := range map[string]struct {
		outlook store.Outlook
		want    []time.Duration
	}{
		"nothing waits":              {store.Outlook{Next: -1}, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 10 * s, 10 * s}},
		"an operator may send back":  {store.Outlook{Next: -1, Dead: true}, []time.Duration{1 * s, 2 * s, 4 * s, 6 * s, 6 * s}},
		"what is due waits its turn": {store.Outlook{Next: 0}, []time.Duration{1 * s, 2 * s, 4 * s, 6 * s, 6 * s}},
		"one is due soon":            {store.Outlook{Next: 3 * s}, []time.Duration{1 * s, 2 * s, 3 * s, 3 * s}},
		"one is due at once":         {store.Outlook{Next: time.Millisecond}, []time.Duration{minPause, minPause}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l looks
			var got []time.Duration
			for range c.want {
				got = append(got, l.rest(c.outlook, s))
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.outlook.Next < 0, l.none)
		})
	}
}
