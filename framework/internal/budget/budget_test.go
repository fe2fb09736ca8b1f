package budget

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Handlers that say nothing share what is left; more than there is is an error that names both numbers.
func TestAllot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		connections int
		relay       bool
		group       int
		wishes      []int
		want        []int
		err         string
	}{
		"none":                  {connections: 7, relay: true},
		"one has enough":        {connections: 30, relay: true, wishes: []int{0}, want: []int{10}},
		"a share each":          {connections: 30, relay: true, wishes: []int{0, 0, 0, 0}, want: []int{5, 5, 5, 5}},
		"without a relay":       {connections: 30, wishes: []int{0, 0, 0, 0}, want: []int{7, 7, 7, 7}},
		"what others leave":     {connections: 30, relay: true, wishes: []int{20, 0, 0}, want: []int{20, 1, 1}},
		"to the last":           {connections: 30, relay: true, wishes: []int{23}, want: []int{23}},
		"groups":                {connections: 30, relay: true, group: 50, wishes: []int{220, 0}, want: []int{220, 500}},
		"one too many":          {connections: 30, relay: true, wishes: []int{24}, err: "is 30: want 31 or more: 2 for what runs in the background, 5 for the relay, 24 for handler h"},
		"no room for the quiet": {connections: 30, relay: true, wishes: []int{22, 0, 0}, err: "want 31 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handlers []*Handler
			for _, n := range c.wishes {
				handlers = append(handlers, &Handler{Name: "h", Concurrency: n})
			}
			err := Allot(c.connections, c.relay, c.group, handlers)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			var got []int
			for _, h := range handlers {
				got = append(got, h.Concurrency)
			}
			assert.Equal(t, c.want, got)
		})
	}
}
