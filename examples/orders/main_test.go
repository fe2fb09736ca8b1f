package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/stage/stagetest"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/docs"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

// run runs the example as a process, on this test's stack.
func run(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	return stagetest.Command(t, []devstack.Service{devstack.Kafka}, args...)
}

func TestEachOrderHasOneResult(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-orders", "2000", "-kills", "4")
	require.Zero(t, code, out)
	assert.Equal(t, 2000, stagetest.Number(t, out, "results"))
	assert.Equal(t, 4, stagetest.Number(t, out, "kills"))
	assert.Contains(t, out, "every order has one result")
	assert.Equal(t, 4, strings.Count(out, "SIGKILL "))
}

// The verdict can fail: without transactions, what was published before a kill is published again after it.
func TestAtLeastOnceDoubles(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-orders", "2000", "-kills", "4", "-delivery", "at-least-once")
	require.Equal(t, stage.Verdict, code, out)
	assert.Positive(t, stagetest.Number(t, out, "doubled"), out)
	assert.Zero(t, stagetest.Number(t, out, "lost"), out)
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

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { command.Run(t.Context(), args, out, out) })
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	stagetest.Refused(t, command, map[string]string{
		"-orders 0 -processors 5 -kills -1": "-orders is 0: want 1 to 1000000\n-processors is 5: want 1 to 4\n-kills is -1: want 0 to 1000",
		"-delivery never":                   `-delivery is "never": want transactional or at-least-once`,
		"-broker pubsub":                    `-broker is "pubsub", which has no transactions`,
		"-broker rabbit":                    `-broker is "rabbit"`,
		"now":                               `unexpected argument "now"`,
	})
}
