package devtest

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Chromium returns the path of a browser that tests can drive. If none is installed, it skips the test and says why;
// MILLRACE_REQUIRE_REAL=chromium makes that a failure.
func Chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	skipAbsent(t, fmt.Errorf("%w: chromium is not on the PATH", devstack.ErrAbsent), "chromium")
	return ""
}
