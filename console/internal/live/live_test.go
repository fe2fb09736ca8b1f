package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// One user's pages took live updates from everybody else. A page that is closed makes room for another one.
func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		var pages sync.WaitGroup
		open := func(user string) (status func() int, leave func()) {
			ctx, cancel := context.WithCancel(t.Context())
			w := httptest.NewRecorder()
			var ended bool
			pages.Go(func() {
				s.Serve(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/live", nil), user, func() string { return "v1" })
				ended = true
			})
			synctest.Wait()
			assert.Equal(t, w.Code != http.StatusOK, ended, "it lasts unless it is refused")
			return func() int { return w.Code }, cancel
		}
		var leave []func()
		opens := func(user string, status int) {
			t.Helper()
			got, end := open(user)
			assert.Equal(t, status, got(), user)
			leave = append(leave, end)
		}
		for range maxOfUser {
			opens("ada", http.StatusOK)
		}
		opens("ada", http.StatusTooManyRequests)
		opens("ada", http.StatusTooManyRequests)
		opens("grace", http.StatusOK)
		leave[0]()
		synctest.Wait()
		opens("ada", http.StatusOK)
		opens("ada", http.StatusTooManyRequests)
		for range maxStreams - maxOfUser - 1 {
			opens("", http.StatusOK)
		}
		opens("", http.StatusServiceUnavailable)
		opens("eve", http.StatusServiceUnavailable)
		leave[1]()
		synctest.Wait()
		opens("eve", http.StatusOK)
		s.Close()
		pages.Wait()
		assert.Empty(t, s.open)
		assert.Empty(t, s.slots)
		for _, end := range leave {
			end()
		}
	})
}
