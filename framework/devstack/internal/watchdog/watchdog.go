// Package watchdog runs services that never outlive this process, however it ends.
package watchdog

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

//go:embed watchdog.sh
var watchdogScript string

// stopSeconds is how long a service may take to end before it is killed.
const stopSeconds = 10

// StartTimeout bounds the start of one service, without the download of its binaries. A JVM on a busy machine takes ten seconds; one that
// takes longer than this hangs.
const StartTimeout = 90 * time.Second

// Step is one command of a watchdog, with the signal that ends it.
type Step struct {
	Signal string
	Argv   []string
}

// Watchdog is a running service together with the shell that guards it. The shell has its own session, so that Ctrl-C reaches this
// process and not the service. It reads from a pipe that only this process can write to (Go opens every file close-on-exec). Closing the
// pipe ends the service, and the kernel closes it too when this process dies. The shell runs as the service's user, because no portable
// command changes users and because that user owns the folder.
type Watchdog struct {
	Room    *Room
	pipe    *os.File
	shell   *exec.Cmd
	seconds int           // how long the service may take to end
	isDown  bool          // the command was crashed or terminated, and the shell waits for Again
	ended   chan struct{} // closed when the shell is gone, and the service and its folder with it
	err     error         // the shell's exit, valid once ended is closed
}

// Watch starts the steps in the room. From then on the watchdog owns the room, even if Watch returns an error.
func Watch(r *Room, steps ...Step) (*Watchdog, error) { return watchFor(r, stopSeconds, steps...) }

func watchFor(r *Room, seconds int, steps ...Step) (*Watchdog, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	// The script is passed in a variable, because as an argument its text would fill every process listing.
	args := []string{"-c", `eval "$MILLRACE_WATCHDOG"`, "millrace-watchdog", r.Dir, strconv.Itoa(seconds)}
	for _, one := range steps {
		args = append(args, one.Signal, quote(one.Argv))
	}
	shell := exec.Command("/bin/sh", args...) //nolint:noctx // it ends with its input, however this process ends
	shell.Dir = "/"
	shell.Env = append(r.environment(), "MILLRACE_WATCHDOG="+watchdogScript)
	shell.Stdin, shell.Stdout, shell.Stderr = read, r.log, r.log
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if r.account != nil {
		shell.SysProcAttr.Credential = &syscall.Credential{Uid: r.account.UID, Gid: r.account.GID}
	}
	err = shell.Start()
	read.Close()
	if err != nil {
		write.Close()
		return nil, errors.Join(fmt.Errorf("start the watchdog: %w", err), r.Discard())
	}
	w := &Watchdog{Room: r, pipe: write, shell: shell, seconds: seconds, ended: make(chan struct{})}
	go func() { // Stop waits for it
		w.err = shell.Wait()
		close(w.ended)
	}()
	return w, nil
}

// Await calls probe every few milliseconds until it returns nil. If the service ends first or does not answer in time, Await stops it and
// returns an error with the end of its log. The error wraps ErrPortTaken if the log says that the port was taken.
func (w *Watchdog) Await(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	var answer chan error // of the running probe; nil if none runs
	defer func() {
		cancel()
		if answer != nil {
			<-answer //nolint:errcheck // no longer needed
		}
	}()
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("it was not asked yet")
	for {
		select {
		case <-w.ended:
			return w.giveUp(fmt.Errorf("it ended at its start (%s)", exitText(w.err)))
		case <-ctx.Done():
			return w.giveUp(fmt.Errorf("wait for an answer: %w; the last was: %w", context.Cause(ctx), last))
		case last = <-answer:
			if answer = nil; last == nil {
				return nil
			}
		case <-tick.C:
			// Google's emulator stays alive without its port, and Kafka takes a minute to exit: kill them.
			if machine.SaysPortTaken(w.Room.Logged()) {
				_, _ = w.pipe.WriteString("kill\n") // it may be gone by now
				return w.giveUp(errors.New("it found its port taken"))
			}
			if answer == nil {
				// The probe has its own goroutine, because the process that took the port may accept connections and never answer.
				answer = make(chan error, 1)
				go func(answer chan<- error) {
					ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
					defer cancel()
					answer <- probe(ctx)
				}(answer)
			}
		}
	}
}

// giveUp stops the service and adds the end of its log to the error.
func (w *Watchdog) giveUp(err error) error {
	err = fmt.Errorf("%w; its log ends with:\n%s", err, w.Room.Tail())
	if machine.SaysPortTaken(w.Room.Logged()) {
		err = fmt.Errorf("%w: %w", machine.ErrPortTaken, err)
	}
	return errors.Join(err, w.Stop())
}

// Crash kills the command and its children at the same moment and keeps the room for Again.
func (w *Watchdog) Crash(ctx context.Context) error { return w.down(ctx, "crash") }

// Terminate asks the command to end, waits until it has ended, and keeps the room for Again.
func (w *Watchdog) Terminate(ctx context.Context) error { return w.down(ctx, "terminate") }

func (w *Watchdog) down(ctx context.Context, line string) error {
	if w.isDown { // the shell would take any line for "again"
		return errors.New("it is down already")
	}
	if _, err := w.pipe.WriteString(line + "\n"); err != nil {
		return err
	}
	w.isDown = true
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(w.Room.Path("crashed")); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-w.ended:
			return fmt.Errorf("it ended by itself; its log ends with:\n%s", w.Room.Tail())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Again runs the command again after Crash or Terminate and waits until it answers. If it does not answer, the watchdog is stopped and
// stopped is true.
func (w *Watchdog) Again(ctx context.Context, probe func(context.Context) error) (stopped bool, err error) {
	if !w.isDown { // otherwise the shell would kill the command and remove its folder
		return false, errors.New("it is not down")
	}
	if _, err := w.pipe.WriteString("again\n"); err != nil {
		return false, err
	}
	w.isDown = false
	err = w.Await(ctx, probe)
	return err != nil, err
}

// Stop ends the service and waits until the service, its shell and its folder are gone. It must be called once, by one goroutine.
func (w *Watchdog) Stop() error {
	w.pipe.Close()
	defer w.Room.log.Close()
	select {
	case <-w.ended:
	case <-time.After(time.Duration(w.seconds+10) * time.Second):
		// Only a shell that hangs gets here. Its session is one process group.
		_ = syscall.Kill(-w.shell.Process.Pid, syscall.SIGKILL) // the shell may be gone by now
		<-w.ended
		return errors.Join(errors.New("the watchdog hung and was killed"), os.RemoveAll(w.Room.Dir))
	}
	if _, err := os.Lstat(w.Room.Dir); err == nil {
		return errors.Join(fmt.Errorf("the folder %s was left: its watchdog ended with %s", w.Room.Dir, exitText(w.err)), os.RemoveAll(w.Room.Dir))
	}
	return nil
}

// IsDown reports whether the command was crashed or terminated and has not been run again.
func (w *Watchdog) IsDown() bool { return w.isDown }

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// quote quotes a command for a POSIX shell.
func quote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
