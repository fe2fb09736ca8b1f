package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
)

// The processors are this test binary again, and so is the whole command.
const commandVariable = "ORDERS_COMMAND"

func TestMain(m *testing.M) {
	if role.Name() != "" || os.Getenv(commandVariable) != "" {
		main()
		return
	}
	devtest.Main(m)
}

// command runs the example as a process, on this test's stack.
func command(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	stack := devtest.Start(t, devstack.Kafka)
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), stack.Env()...), commandVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		code = exit.ExitCode()
	}
	return code, string(out)
}

// number returns what the table says of a thing.
func number(t *testing.T, output, name string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` +(\d+)`).FindStringSubmatch(output)
	require.NotNil(t, found, "%s in:\n%s", name, output)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

func TestEachOrderHasOneResult(t *testing.T) {
	t.Parallel()
	code, out := command(t, "-orders", "2000", "-kills", "4")
	require.Zero(t, code, out)
	assert.Equal(t, 2000, number(t, out, "results"))
	assert.Equal(t, 4, number(t, out, "kills"))
	assert.Contains(t, out, "every order has one result")
	assert.Equal(t, 4, strings.Count(out, "SIGKILL processor"))
}

// The verdict can fail: without transactions, what was published before a kill is published again after it.
func TestAtLeastOnceDoubles(t *testing.T) {
	t.Parallel()
	code, out := command(t, "-orders", "2000", "-kills", "4", "-delivery", "at-least-once")
	require.Equal(t, exitVerdict, code, out)
	assert.Positive(t, number(t, out, "doubled"), out)
	assert.Zero(t, number(t, out, "lost"), out)
	assert.Contains(t, out, "this is what happens with at-least-once delivery")
}

func TestJudge(t *testing.T) {
	t.Parallel()
	results := map[string]int{"order-0": 1, "order-1": 3, "order-3": 1, "order-4": 2}
	assert.Equal(t, verdict{orders: 4, results: 7, lost: 1, doubled: 1, foreign: 2}, judge(4, results))
	delete(results, "order-4")
	results["order-1"], results["order-2"] = 1, 1
	assert.True(t, judge(4, results).good())
	assert.False(t, judge(5, results).good())
	assert.False(t, judge(3, results).good())
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-orders 0 -processors 5 -kills -1": "-orders is 0: want 1 to 1000000\n-processors is 5: want 1 to 4\n-kills is -1: want 0 to 1000",
		"-delivery never":                   `-delivery is "never": want transactional or at-least-once`,
		"now":                               `unexpected argument "now"`,
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, exitTrouble, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), want)
		assert.Empty(t, stdout.String())
	}
}
