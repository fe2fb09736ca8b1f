package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/stage/stagetest"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/docs"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

// run runs the quickstart as a process, on this test's stack.
func run(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	return stagetest.Command(t, []devstack.Service{devstack.Postgres, devstack.PubSub, devstack.Kafka}, args...)
}

func TestNothingIsLostOrDoubledUnderKills(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-events", "400", "-kills", "8", "-duplicates", "0.5")
	require.Zero(t, code, out)
	assert.Equal(t, 400, stagetest.Number(t, out, "events committed"))
	assert.Equal(t, 8, stagetest.Number(t, out, "kills"))
	assert.Zero(t, stagetest.Number(t, out, "lost"))
	assert.Zero(t, stagetest.Number(t, out, "doubled"))
	assert.Contains(t, out, "effects              400 notifications, 400 texts, 400 thanks")
	assert.Positive(t, stagetest.Number(t, out, "duplicates absorbed"))
	assert.Contains(t, out, "postgres: ")
	assert.Contains(t, out, "pubsub: ")
}

// The same behind push: a killed process's requests fail, and Pub/Sub sends their messages to another one.
func TestNothingIsLostOrDoubledBehindPush(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-push", "-events", "300", "-kills", "6", "-duplicates", "0.5")
	require.Zero(t, code, out)
	assert.Equal(t, 6, stagetest.Number(t, out, "kills"))
	assert.Contains(t, out, "effects              300 notifications, 300 texts, 300 thanks")
	assert.Positive(t, stagetest.Number(t, out, "duplicates absorbed"))
	assert.Contains(t, out, "by push")
}

// The same on Kafka: a killed consumer's partitions go to the others when its session has timed out.
func TestNothingIsLostOrDoubledOnKafka(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-broker", "kafka", "-events", "300", "-kills", "6", "-duplicates", "0.5")
	require.Zero(t, code, out)
	assert.Equal(t, 6, stagetest.Number(t, out, "kills"))
	assert.Contains(t, out, "effects              300 notifications, 300 texts, 300 thanks")
	assert.Positive(t, stagetest.Number(t, out, "duplicates absorbed"))
	assert.Contains(t, out, "kafka: ")
}

// The verdict can fail: without a part, the same run shows what that part is for.

func TestWithoutClaimEffectsDouble(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	code, out := run(t, "-events", "300", "-kills", "2", "-without", "claim")
	require.Equal(t, stage.Verdict, code, out)
	assert.Positive(t, stagetest.Number(t, out, "doubled"))
}

func TestWithoutOutboxEventsAreLost(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	code, out := run(t, "-events", "400", "-kills", "4", "-duplicates", "0", "-without", "outbox")
	require.Equal(t, stage.Verdict, code, out)
	assert.Positive(t, stagetest.Number(t, out, "lost"))
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	code, out := run(t, "-broker", "memory", "-events", "200")
	require.Zero(t, code, out)
	assert.Contains(t, out, "every event took effect exactly once in the database")
	code, out = run(t, "-broker", "memory", "-events", "200", "-without", "claim")
	require.Equal(t, stage.Verdict, code, out)
}

// withConsole starts the command with the console, and returns its address.
func withConsole(t *testing.T, args ...string) (cmd *exec.Cmd, out *output, address string) {
	t.Helper()
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub)
	out = &output{}
	cmd = exec.CommandContext(t.Context(), os.Args[0], append([]string{"-console"}, args...)...)
	cmd.Env = append(append(os.Environ(), stack.Env()...), stagetest.AsCommand)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		found := regexp.MustCompile(`console: (http://127\.0\.0\.1:\d+/)\n`).FindStringSubmatch(out.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	}, time.Minute, 20*time.Millisecond)
	return cmd, out, address
}

// The console answers while processes are killed beside it.
func TestConsole(t *testing.T) {
	t.Parallel()
	cmd, out, address := withConsole(t, "-events", "400", "-kills", "8")
	get := func(path string) string {
		response, err := http.Get(address + path)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.Status + string(body)
	}
	require.Eventually(t, func() bool {
		page := get("")
		return strings.Contains(page, "labour.completed") || strings.Contains(page, "consumer=")
	}, time.Minute, 20*time.Millisecond, "the first page shows the system at work")
	for _, path := range []string{"quickstart/outbox", "quickstart/dead", "quickstart/audit"} {
		assert.Contains(t, get(path), "200 OK", path)
	}
	require.NoError(t, cmd.Wait(), out.String())
	assert.Equal(t, 8, stagetest.Number(t, out.String(), "kills"))
	assert.Contains(t, get(""), "refused", "it has ended with the run")
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	stagetest.Refused(t, command, map[string]string{
		"-broker rabbit":                       `-broker is "rabbit": want pubsub, kafka or memory`,
		"-events 0 -consumers 0 -duplicates 2": "-events is 0: want 1 to 1000000\n-consumers is 0: want 1 to 16\n-duplicates is 2: want 0 to 1",
		"-duplicates NaN":                      "-duplicates is NaN",
		"-kills -1":                            "-kills is -1",
		"-without luck":                        `-without is "luck": want claim or outbox`,
		"-broker memory -kills 3":              "nothing can be killed",
		"-broker memory -push":                 "-push is Pub/Sub's: with -broker memory there is none",
		"-broker kafka -push":                  "-push is Pub/Sub's: with -broker kafka there is none",
		"-broker memory -without outbox":       "nothing can be killed",
		"now":                                  `unexpected argument "now"`,
		"-unknown":                             "flag provided but not defined",
	})
}

// A client without an answer made no difference when what it asked for was there.
func TestWaitingClientsMakeTheVerdictBad(t *testing.T) {
	t.Parallel()
	assert.True(t, verdict{}.good())
	assert.False(t, verdict{unanswered: 1}.good())
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { command.Run(t.Context(), args, out, out) })
}

// An interrupt in the middle, as by Ctrl-C, and a kill of the main process: neither leaves a process behind.
func TestNoProcessIsLeftBehind(t *testing.T) {
	t.Parallel()
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			mark := "QUICKSTART_TEST=" + devtest.Topic(t)
			var out output
			cmd := exec.Command(os.Args[0], "-events", "2000", "-kills", "4")
			cmd.Env = append(append(os.Environ(), stack.Env()...), stagetest.AsCommand, mark)
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.WaitDelay = 20 * time.Second
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return len(marked(t, mark)) > 4 && strings.Contains(out.String(), "%") },
				2*time.Minute, 20*time.Millisecond, "it is in the middle")
			require.NoError(t, cmd.Process.Signal(signal))
			err := cmd.Wait()
			require.Error(t, err)
			require.Eventually(t, func() bool { return len(marked(t, mark)) == 0 }, time.Minute, 20*time.Millisecond)
			if signal == syscall.SIGINT {
				assert.Contains(t, out.String(), "everything that was started is gone")
			}
		})
	}
}

// The API hangs in the middle: what was committed has its effects, but the run did not do what it was asked to.
func TestUnfinishedRunIsNoSuccess(t *testing.T) {
	t.Parallel()
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub)
	mark := "QUICKSTART_TEST=" + devtest.Topic(t)
	var out output
	cmd := exec.Command(os.Args[0], "-events", "2000", "-kills", "0")
	cmd.Env = append(append(os.Environ(), stack.Env()...), stagetest.AsCommand, mark)
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "%") }, 2*time.Minute, 20*time.Millisecond)
	for _, pid := range marked(t, mark) {
		if env, err := os.ReadFile("/proc/" + pid + "/environ"); err == nil && bytes.Contains(env, []byte("MILLRACE_ROLE=api\x00")) {
			n, err := strconv.Atoi(pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(n, syscall.SIGSTOP))
		}
	}
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	assert.Equal(t, stage.Verdict, exit.ExitCode(), out.String())
	assert.Positive(t, stagetest.Number(t, out.String(), "never completed"))
	assert.Contains(t, out.String(), "FAILED")
}

// marked returns the processes that have the mark in their environment.
func marked(t *testing.T, mark string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && bytes.Contains(env, []byte(mark)) {
			found = append(found, e.Name())
		}
	}
	return found
}

// output is a buffer that a process writes to while a test reads it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
