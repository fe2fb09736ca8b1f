package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A relay whose pool is exhausted renews its leases on a connection of its own, and reads nothing: its shards go to one that does.
func TestRelayThatCannotReadLosesItsShards(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]func(n *node, p *pending){
		"an error": func(n *node, p *pending) {
			p.answer = lost(p.action, p.began)
			n.answer(p)
		},
		"no answer for a minute": func(n *node, p *pending) {
			if n.world.now.Sub(p.began) > time.Minute {
				p.answer = lost(p.action, p.began)
				n.answer(p)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 4)
			blind := w.start()
			w.start()
			w.run(10 * time.Second)
			require.Len(t, blind.core.Held(), 2)
			for i := range int16(4) {
				w.write("a", fmt.Sprint("k", i), i)
			}
			blind.unread = fate
			w.run(time.Minute)
			require.Empty(t, w.rows, "%s", w)
			require.Empty(t, blind.core.Held())
			blind.unread = nil
			w.run(15 * time.Minute)
			assert.Len(t, blind.core.Held(), 2, "it is back")
		})
	}
}
