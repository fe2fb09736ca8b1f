package watchdog

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

const (
	waitFor = 20 * time.Second
	tick    = 10 * time.Millisecond

	nullSignal = syscall.Signal(0)
)

func startBystander(t *testing.T) *exec.Cmd {
	t.Helper()
	bystander := exec.Command("sleep", "300")
	require.NoError(t, bystander.Start())
	t.Cleanup(func() {
		assert.NoError(t, bystander.Process.Kill())
		bystander.Wait() // killed
	})
	return bystander
}

func shell(script string) Step { return Step{"TERM", []string{"/bin/sh", "-c", script}} }

func run(t *testing.T, seconds int, steps ...Step) *Watchdog {
	t.Helper()
	r, err := NewRoom("postgres", nil)
	require.NoError(t, err)
	w, err := watchFor(r, seconds, steps...)
	require.NoError(t, err)
	return w
}

// logs is a probe that succeeds once the service has written the text.
func logs(w *Watchdog, text string) func(context.Context) error {
	return func(context.Context) error {
		if w.Room.Tail() != text {
			return errors.New("not yet")
		}
		return nil
	}
}

// catches tells whether a process has handlers of the signals.
func catches(pid int, signals ...syscall.Signal) bool {
	listing, err := exec.Command("ps", "-o", "caught=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	caught, err := strconv.ParseUint(strings.TrimSpace(string(listing)), 16, 64)
	for _, s := range signals {
		if err != nil || caught&(1<<(s-1)) == 0 {
			return false
		}
	}
	return true
}

func TestWatchdog(t *testing.T) {
	t.Run("runs the steps in turn and hands their signal on", func(t *testing.T) {
		leftover.Dir(t)
		w := run(t, 10, shell("echo one"), shell(`trap 'echo ended; exit' TERM; echo two; while :; do sleep 0.02; done`))
		require.NoError(t, w.Await(t.Context(), logs(w, "one\ntwo")))
		// The log outlives its folder for whoever holds it open.
		log, err := os.Open(w.Room.Path("log"))
		require.NoError(t, err)
		defer log.Close()
		require.NoError(t, w.Stop())
		content, err := io.ReadAll(log)
		require.NoError(t, err)
		assert.Equal(t, "one\ntwo\nended\n", string(content))
	})
	t.Run("kills what does not listen", func(t *testing.T) {
		leftover.Dir(t)
		w := run(t, 1, shell(`trap '' TERM; echo deaf; while :; do sleep 0.02; done`))
		require.NoError(t, w.Await(t.Context(), logs(w, "deaf")))
		began := time.Now()
		require.NoError(t, w.Stop())
		assert.Greater(t, time.Since(began), 900*time.Millisecond)
	})
	t.Run("tells the end of the log of a service that dies", func(t *testing.T) {
		leftover.Dir(t)
		w := run(t, 10, shell("echo cannot; exit 3"), shell("echo never"))
		err := w.Await(t.Context(), logs(w, "never"))
		assert.ErrorContains(t, err, "exit status 3")
		assert.ErrorContains(t, err, "cannot")
		assert.NotErrorIs(t, err, machine.ErrPortTaken)
	})
	t.Run("kills at once what found its port taken", func(t *testing.T) {
		leftover.Dir(t)
		w := run(t, 300, shell("trap '' TERM; echo java.net.BindException: Address already in use; while :; do sleep 0.02; done"))
		assert.ErrorIs(t, w.Await(t.Context(), logs(w, "never")), machine.ErrPortTaken)
	})
	t.Run("survives signals", func(t *testing.T) {
		dir := leftover.Dir(t)
		w := run(t, 10, shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"))
		require.NoError(t, w.Await(t.Context(), logs(w, "up")))
		// The service may be up before its guard has come to its trap.
		require.Eventually(t, func() bool { return catches(w.shell.Process.Pid, syscall.SIGTERM, syscall.SIGINT) }, waitFor, tick)
		require.NoError(t, syscall.Kill(w.shell.Process.Pid, syscall.SIGTERM))
		require.NoError(t, syscall.Kill(w.shell.Process.Pid, syscall.SIGINT))
		assert.NotEmpty(t, leftover.In(t, dir))
		require.NoError(t, w.Stop())
	})
	t.Run("runs again what it has ended", func(t *testing.T) {
		dir := leftover.Dir(t)
		w := run(t, 10, shell(`trap 'echo ended; exit' TERM; echo up; while :; do sleep 0.02; done`))
		require.NoError(t, w.Await(t.Context(), logs(w, "up")))
		require.NoError(t, w.Terminate(t.Context()))
		stopped, err := w.Again(t.Context(), logs(w, "up\nended\nup"))
		require.NoError(t, err)
		require.False(t, stopped)
		require.NoError(t, w.Crash(t.Context()))
		require.NoError(t, w.Stop())
		assert.Empty(t, leftover.In(t, dir))
	})
	t.Run("waits for the children of what crashes", func(t *testing.T) {
		dir := leftover.Dir(t)
		ps, err := exec.LookPath("ps")
		require.NoError(t, err)
		// The third answer is the first that says that the child is dead.
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ps"), []byte("#!/bin/sh\necho asked >>"+dir+"/asked\nif [ $(wc -l <"+dir+"/asked) -lt 3 ]; then "+ps+" \"$@\" | sed 's/Z/D/'; else exec "+ps+" \"$@\"; fi\n"), 0o755)) //nolint:gosec // it is run
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		w := run(t, 10, shell("sleep 300 & echo up; wait"))
		require.NoError(t, w.Await(t.Context(), logs(w, "up")))
		require.NoError(t, w.Crash(t.Context()))
		asked, err := os.ReadFile(filepath.Join(dir, "asked"))
		require.NoError(t, err)
		assert.Equal(t, "asked\nasked\nasked\n", string(asked))
		require.NoError(t, w.Stop())
		require.NoError(t, os.Remove(filepath.Join(dir, "asked")))
		require.NoError(t, os.Remove(filepath.Join(dir, "ps")))
	})
	t.Run("quotes", func(t *testing.T) {
		leftover.Dir(t)
		w := run(t, 10, Step{"TERM", []string{"printf", "%s|", "it's", "", `a"b`, "$HOME `x` \\"}}, shell("sleep 300"))
		require.NoError(t, w.Await(t.Context(), logs(w, "it's||a\"b|$HOME `x` \\|")))
		require.NoError(t, w.Stop())
	})
}

// A child that merely runs at the same time must not hold the pipe by whose end the watchdog learns of our death.
func TestPipeIsNotInherited(t *testing.T) {
	leftover.Dir(t)
	r, err := NewRoom("postgres", nil)
	require.NoError(t, err)
	w, err := Watch(r, Step{"TERM", []string{"sleep", "300"}})
	require.NoError(t, err)
	bystander := startBystander(t)
	require.NoError(t, w.Stop())
	assert.NoError(t, bystander.Process.Signal(nullSignal), "the bystander runs still")
}
