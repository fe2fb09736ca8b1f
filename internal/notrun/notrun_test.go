package notrun

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scripts/test says once for each need how many tests it kept from running, repeats at the end what has failed, and passes the
// result of "go test" on.
func TestScriptSaysWhatWasNotRun(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "../../scripts/test", append(args, "./internal/notrun/testdata/lacking")...).CombinedOutput()
		return string(output), err
	}
	const said = "Not run on this machine, or only in part (-v names the tests):\n" +
		"  1 test needs sugar: ask a neighbour\n" +
		"  2 tests need tea: boil water\n"

	passed, err := run("-count=2", "-skip=TestSpilled")
	require.NoError(t, err)
	assert.Regexp(t, `^ok [^\n]*\n\n`+regexp.QuoteMeta(said)+`$`, passed)

	failed, err := run("-v")
	exit := new(exec.ExitError)
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 1, exit.ExitCode())
	assert.Contains(t, failed, "spilled")
	assert.Contains(t, failed, "--- SKIP: TestMoreTea")
	assert.Contains(t, failed, "this test needs tea: boil water (none on this machine)")
	assert.Regexp(t, regexp.QuoteMeta(said)+`\nFailed:\n(.*\n)* *lacking_test.go:25: spilled\n--- FAIL: TestSpilled .*\nFAIL\s.*/lacking\s.*\n$`, failed)

	all, err := run("-run=TestWater")
	require.NoError(t, err)
	assert.NotContains(t, all, "Not run")
}
