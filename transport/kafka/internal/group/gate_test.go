package group

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// waiter counts how often it was woken since the last look.
type waiter struct{ woken int }

func (w *waiter) Wake() { w.woken++ }

func (w *waiter) looks() (woken bool) {
	woken, w.woken = w.woken > 0, 0
	return woken
}

func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		var others, alone waiter
		assert.True(t, g.Enter(&others))
		assert.True(t, g.Enter(&others))
		assert.False(t, g.Close(&alone), "others are in")
		assert.False(t, g.Enter(&others), "one waits to be alone")
		g.Leave(1)
		assert.False(t, alone.looks())
		g.Leave(1)
		assert.True(t, alone.looks())
		assert.True(t, g.Close(&alone))
		assert.True(t, g.Enter(&alone))
		assert.False(t, g.Enter(&others))
		g.Leave(1)
		assert.False(t, g.Enter(&others), "its end is not committed yet")
		others.looks()
		g.Open(&alone)
		assert.True(t, others.looks())

		// The others go first if some waited.
		assert.False(t, g.Close(&alone))
		assert.True(t, g.Enter(&others))
		g.Leave(1)
		<-time.After(2 * yield)
		synctest.Wait()
		assert.True(t, alone.looks())
		assert.True(t, g.Close(&alone))
		g.Open(&alone)
		assert.True(t, g.Close(&alone), "nobody waited")
		g.Open(&alone)
	})
}

// What runs alone may wait for another message, or never end: the others do not wait for ever.
func TestGateOpensAfterItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		var others, alone, next waiter
		assert.True(t, g.Close(&alone))
		assert.True(t, g.Enter(&alone))
		assert.False(t, g.Enter(&others))
		<-time.After(aloneLimit)
		synctest.Wait()
		assert.True(t, others.looks())
		assert.True(t, g.Enter(&others))
		assert.False(t, g.Close(&next), "it still runs")
		g.Leave(2)
		g.Open(&alone)
		<-time.After(2 * yield)
		synctest.Wait()
		assert.True(t, g.Close(&next))
		g.Open(&next)
	})
}

// Something in the process never ends: what waits to be alone keeps the others out for no longer than its limit.
func TestGateGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		var others, alone waiter
		assert.True(t, g.Enter(&others))
		for range 3 {
			assert.False(t, g.Close(&alone))
			assert.False(t, g.Enter(&others))
			<-time.After(aloneLimit)
			synctest.Wait()
			assert.True(t, others.looks())
			assert.False(t, g.Close(&alone))
			assert.True(t, g.Enter(&others))
			g.Leave(1)
			<-time.After(aloneLimit)
			synctest.Wait()
			assert.True(t, alone.looks())
		}
		g.Leave(1)
		assert.True(t, g.Close(&alone))
		g.Open(&alone)
	})
}
