package claim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLooksInVainBecomeRare(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, c := range map[string]struct {
		outlook outlook
		want    []time.Duration
	}{
		"nothing waits":              {outlook{next: -1}, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 10 * s, 10 * s}},
		"an operator may send back":  {outlook{next: -1, dead: true}, []time.Duration{1 * s, 2 * s, 4 * s, 5 * s, 5 * s}},
		"what is due waits its turn": {outlook{next: 0}, []time.Duration{1 * s, 2 * s, 4 * s, 5 * s, 5 * s}},
		"one is due soon":            {outlook{next: 3 * s}, []time.Duration{1 * s, 2 * s, 3 * s, 3 * s}},
		"one is due at once":         {outlook{next: time.Millisecond}, []time.Duration{minPause, minPause}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l looks
			var got []time.Duration
			for range c.want {
				got = append(got, l.rest(c.outlook, s))
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.outlook.next < 0, l.none)
		})
	}
}
