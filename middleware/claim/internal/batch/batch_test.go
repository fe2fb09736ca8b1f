package batch

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// gathering is a gatherer whose groups run for as long as the test says.
type gathering struct {
	*gatherer
	wait  sync.WaitGroup
	mu    sync.Mutex
	began []int // sizes of groups
	open  []*group
}

func (g *gathering) come(n int) {
	for range n {
		its, first := g.join(newMember(context.Background(), store.Key{}, nil))
		if first {
			g.wait.Go(func() {
				g.await(its)
				g.mu.Lock()
				defer g.mu.Unlock()
				g.began, g.open = append(g.began, len(its.members)), append(g.open, its)
			})
		}
	}
	synctest.Wait()
}

func (g *gathering) endFirst() {
	g.end(g.next())
	synctest.Wait()
}

func (g *gathering) next() *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	its := g.open[0]
	g.open = g.open[1:]
	return its
}

func (g *gathering) sizes() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.began
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A COMMIT without an answer may be the fault of one event, so each is claimed alone. Nothing was counted, even in a group of one.
func TestConcludeInDoubt(t *testing.T) {
	handled, failed := &member{state: memberHandled}, &member{state: memberFailed, result: Result{Ran: true, Err: io.EOF}}
	last := &member{state: memberHandled}
	conclude([]*member{handled, failed, last}, true, pgtx.ErrOutcomeUnknown)
	assert.Equal(t, []memberState{memberAgain, memberFailed, memberAgain}, []memberState{handled.state, failed.state, last.state})
	assert.Equal(t, Result{Ran: true, Err: io.EOF}, failed.result)

	handled.state, failed.state = memberHandled, memberFailed
	conclude([]*member{handled, failed}, true, pgtx.ErrOutcomeUnknown)
	assert.Equal(t, []memberState{memberAgain, memberFailed}, []memberState{handled.state, failed.state}, "its failure is recorded, and it is not called again")
}

func TestGatherer(t *testing.T) {
	gather := func(t *testing.T, f func(g *gathering)) {
		synctest.Test(t, func(t *testing.T) {
			g := &gathering{gatherer: &gatherer{max: 10, linger: linger}}
			f(g)
			g.wait.Wait() // lingers in the bubble
		})
	}
	t.Run("one message at a time never waits", func(t *testing.T) {
		gather(t, func(g *gathering) {
			began := time.Now()
			for range 5 {
				g.come(1)
				g.endFirst()
			}
			assert.Equal(t, []int{1, 1, 1, 1, 1}, g.sizes())
			assert.Zero(t, time.Since(began))
		})
	})
	t.Run("those that come while one is at work are the next group", func(t *testing.T) {
		gather(t, func(g *gathering) {
			began := time.Now()
			g.come(1)
			g.come(4)
			g.endFirst()
			g.come(1) // back again: it was awaited
			for range 2 {
				g.endFirst()
				g.come(5)
			}
			assert.Equal(t, []int{1, 5, 5, 5}, g.sizes())
			assert.Less(t, time.Since(began), linger)
		})
	})
	t.Run("a full group does not wait for others", func(t *testing.T) {
		gather(t, func(g *gathering) {
			g.come(1)
			g.come(25)
			assert.Equal(t, []int{1, 10, 10}, g.sizes())
			pass(linger)
			assert.Equal(t, []int{1, 10, 10, 5}, g.sizes(), "nor does the rest for long")
		})
	})
	t.Run("who stays away is not awaited twice", func(t *testing.T) {
		gather(t, func(g *gathering) {
			g.come(1)
			g.come(6)
			g.endFirst()
			pass(linger)
			g.endFirst()
			began := time.Now()
			g.come(2)
			pass(linger)
			g.endFirst()
			g.come(2)
			assert.Equal(t, []int{1, 6, 2, 2}, g.sizes())
			assert.Equal(t, linger, time.Since(began))
		})
	})
}
