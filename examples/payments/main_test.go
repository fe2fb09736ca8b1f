package main

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/stage/stagetest"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/docs"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

func run(t *testing.T, broker devstack.Service, args ...string) (code int, output string) {
	t.Helper()
	return stagetest.Command(t, []devstack.Service{devstack.Postgres, devstack.Redis, broker}, args...)
}

func TestEachPaymentOnceUnderKills(t *testing.T) {
	t.Parallel()
	for _, broker := range []devstack.Service{devstack.Kafka, devstack.PubSub} {
		t.Run(string(broker), func(t *testing.T) {
			t.Parallel()
			code, out := run(t, broker, "-broker", string(broker), "-payments", "400", "-kills", "6")
			require.Zero(t, code, out)
			assert.Equal(t, 400, stagetest.Number(t, out, "payments"))
			assert.Equal(t, 6, stagetest.Number(t, out, "kills"))
			assert.Positive(t, stagetest.Number(t, out, "requests repeated"))
			assert.Positive(t, stagetest.Number(t, out, "keys used again"), "were refused")
			assert.Greater(t, stagetest.Number(t, out, "deliveries"), 800, "duplicates were delivered")
			assert.Positive(t, stagetest.Number(t, out, "late deliveries"))
			assert.Contains(t, out, "every payment was made, answered and booked once")
		})
	}
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	code, out := run(t, devstack.Postgres, "-broker", "memory", "-payments", "200")
	require.Zero(t, code, out)
	assert.Contains(t, out, "every payment was made, answered and booked once")
}

// The verdict can fail: without a part, the same run shows what that part is for.
func TestWithoutPart(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for part, wrong := range map[string]string{
		"key":   `(?s)keys used again +0 refused, [1-9].*paid twice +[1-9].*other answers +[1-9]`,
		"claim": `(?s)balance +0 missing, [1-9]\d* booked twice.*points +0 missing, [1-9]\d* booked twice`,
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			code, out := run(t, devstack.Postgres, "-broker", "memory", "-payments", "200", "-without", part)
			require.Equal(t, stage.Verdict, code, out)
			assert.Regexp(t, wrong, out)
			assert.Contains(t, out, "this is what happens without the "+part)
		})
	}
}

// What comes when Redis has forgotten is booked again; PostgreSQL's claim, beside it, remembers.
func TestWindow(t *testing.T) {
	t.Parallel()
	code, out := run(t, devstack.Postgres, "-broker", "memory", "-payments", "200", "-window", "1s")
	require.Equal(t, stage.Verdict, code, out)
	assert.Contains(t, out, "this is what a window of 1s lets through")
	assert.Regexp(t, `balance +0 missing, 0 booked twice`, out)
	assert.Regexp(t, `points +0 missing, [1-9]\d* booked twice`, out)
}

// A client without an answer made no difference when what it asked for was there.
func TestWaitingClientsMakeTheVerdictBad(t *testing.T) {
	t.Parallel()
	assert.True(t, verdict{}.good())
	assert.False(t, verdict{waiting: 1}.good())
}

// The run ended, and was good, before any of the late deliveries had come.
func TestLateDeliveriesMustCome(t *testing.T) {
	t.Parallel()
	var counts stage.Counts
	counts.Add("deliveries")
	l := late{counts: &counts, before: 1, want: 1}
	looks := l.after(func(context.Context) (string, bool, error) { return "1 of 1", true, nil })
	line, all, err := looks(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "1 of 1, 0 of 1 late deliveries", line)
	assert.False(t, all)
	assert.False(t, verdict{missed: l.want - l.came()}.good())
	counts.Add("deliveries")
	_, all, _ = looks(t.Context())
	assert.True(t, all)
	assert.True(t, verdict{missed: l.want - l.came()}.good())
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { command.Run(t.Context(), args, out, out) })
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	stagetest.Refused(t, command, map[string]string{
		"-payments 0 -window 2h":       "-payments is 0: want 1 to 1000000\n-window is 2h0m0s: want 0, or 100ms to 1m",
		"-without luck -broker rabbit": "-without is \"luck\": want key or claim\n-broker is \"rabbit\": want pubsub, kafka or memory",
		"-broker memory -kills 3":      "nothing can be killed",
		"-kills 1001 now":              "unexpected argument \"now\"",
		"-unknown":                     "flag provided but not defined",
	})
}
