package devstack

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if ending := os.Getenv(childVariable); ending != "" {
		child(ending)
		return
	}
	before := goleak.IgnoreCurrent() // OpenCensus, which Google's client imports, starts a goroutine in an init
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(before); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
