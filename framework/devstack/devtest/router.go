package devtest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Run runs the router until the test ends. It returns once the router's handlers are subscribed. It fails the test if they cannot be
// subscribed or if the router does not close.
func Run(t testing.TB, router *message.Router) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatalf("the router has ended: %v", err)
	}
	t.Cleanup(func() {
		if err := router.Close(); err != nil {
			t.Errorf("close the router: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("run the router: %v", err)
		}
	})
}
