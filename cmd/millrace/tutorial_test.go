package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// What a reader of docs/tutorial.md does, in one shell: each file is written, each command run, and what it prints is what
// the page shows.
func TestTutorial(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	page, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	text := string(page)
	for _, address := range []string{"127.0.0.1:8080", "127.0.0.1:8081"} {
		text = strings.ReplaceAll(text, address, freeAddress(t))
	}
	room := t.TempDir()
	shell := tutorialShell(t, room)
	steps := tutorialSteps(t, text)
	require.Greater(t, len(steps), 30)
	for _, s := range steps {
		s.take(t, shell, filepath.Join(room, "labour"))
	}
	shell.end(t)
	t.Log(shell.output)
}

// freeAddress is one at which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// tutorialStep is a block of code of the page, with the output that the page shows for it.
type tutorialStep struct {
	line      int
	language  string // sh, diff, or that of a file
	again     bool   // commands that only look, and may be repeated until they show the output
	code      string
	output    string
	hasOutput bool
}

var tutorialBlock = regexp.MustCompile("(?ms)^```(\\w+)( again)?\n(.*?)^```$")

func tutorialSteps(t *testing.T, text string) (steps []tutorialStep) {
	t.Helper()
	require.Zero(t, strings.Count("\n"+text, "\n```")%2)
	for _, m := range tutorialBlock.FindAllStringSubmatchIndex(text, -1) {
		s := tutorialStep{line: 1 + strings.Count(text[:m[0]], "\n"), language: text[m[2]:m[3]], again: m[4] >= 0, code: text[m[6]:m[7]]}
		if s.language != "text" {
			steps = append(steps, s)
			continue
		}
		require.NotEmpty(t, steps, "line %d: output of nothing", s.line)
		last := &steps[len(steps)-1]
		require.True(t, last.language == "sh" && !last.hasOutput, "line %d: output of no command", s.line)
		last.output, last.hasOutput = s.code, true
	}
	return steps
}

func (s tutorialStep) take(t *testing.T, shell *tutorialBash, folder string) {
	t.Helper()
	at := fmt.Sprintf("docs/tutorial.md:%d", s.line)
	switch s.language {
	case "sh":
		s.run(t, shell, at)
	case "diff":
		header, change, _ := strings.Cut(s.code, "\n+++ ")
		name, change, _ := strings.Cut(change, "\n")
		require.Equal(t, "--- "+name, header, at)
		var before, after strings.Builder
		for line := range strings.Lines(change) {
			if line[0] != '+' {
				before.WriteString(line[1:])
			}
			if line[0] != '-' {
				after.WriteString(line[1:])
			}
		}
		file := filepath.Join(folder, name)
		content, err := os.ReadFile(file)
		require.NoError(t, err, at)
		require.Equal(t, 1, strings.Count(string(content), before.String()), "%s: lines that %s must have once:\n%s", at, name, before.String())
		write(t, folder, name, strings.Replace(string(content), before.String(), after.String(), 1))
	default:
		comment, _, _ := strings.Cut(s.code, "\n")
		name := strings.TrimSpace(strings.TrimLeft(comment, "/#"))
		require.Regexp(t, `^[\w/]+\.(go|yaml)$`, name, "%s: the file's name in the first line", at)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700))
		write(t, folder, name, s.code)
	}
}

// run runs the commands. Where the page shows no output any will do.
func (s tutorialStep) run(t *testing.T, shell *tutorialBash, at string) {
	t.Helper()
	want := tutorialOutput(s.output)
	code := s.code
	if listed := tutorialEvent.FindAllString(shell.output.String(), -1); len(listed) > 0 {
		code = strings.ReplaceAll(code, "0198c0de…3f2a", listed[len(listed)-1])
	}
	var got, failed string
	matches := func() bool {
		got, failed = shell.run(t, code)
		return failed == "" && (!s.hasOutput || want.MatchString(got))
	}
	if !s.again {
		require.True(t, matches(), "%s: it prints\n%s%s", at, got, failed)
		return
	}
	look, deadline := time.NewTicker(200*time.Millisecond), time.Now().Add(90*time.Second)
	defer look.Stop()
	for !matches() {
		require.True(t, time.Now().Before(deadline), "%s: it still prints\n%s%s", at, got, failed)
		<-look.C
	}
}

// tutorialEvent is an event in a list; the page has an ID of its own in its place.
var tutorialEvent = regexp.MustCompile(`(?m)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// tutorialOutput matches what the page shows: … is anything in a line, and a line that is only that any number of lines.
func tutorialOutput(shown string) *regexp.Regexp {
	var pattern strings.Builder
	for line := range strings.Lines(shown) {
		if line == "…\n" {
			pattern.WriteString(`(.*\n)*`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*"))
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`)
}

func TestTutorialOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shown, got string
		want       bool
	}{
		{"a … (c)\n", "a b (c)\n", true},
		{"a … c\n", "a b\n c\n", false},
		{"a\n", "a\nb\n", false},
		{"…\nb\n…\n", "a\na\nb\n", true},
		{"…\nb\n", "a\n", false},
	} {
		require.Equal(t, c.want, tutorialOutput(c.shown).MatchString(c.got), "%q %q", c.shown, c.got)
	}
}

// tutorialBash is a shell that reads commands as they are typed, so that a shell that one of them starts reads the next.
type tutorialBash struct {
	command *exec.Cmd
	input   io.WriteCloser
	output  *buffer
	ended   chan error
}

// tutorialShell starts one in which "git clone" finds this repository, and "millrace dev" the services of the tests.
func tutorialShell(t *testing.T, room string) *tutorialBash {
	t.Helper()
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub)
	schema := devtest.Schema(t)
	dsn, err := url.Parse(stack.PostgresDSN())
	require.NoError(t, err)
	query := dsn.Query()
	query.Set("search_path", schema)
	dsn.RawQuery = query.Encode()

	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	bin := filepath.Join(room, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	git, err := exec.LookPath("git")
	require.NoError(t, err)
	clone := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = 'clone https://github.com/millrace-go/millrace' ] && exec ln -s '%s' millrace\nexec '%s' \"$@\"\n", root, git)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "git"), []byte(clone), 0o700)) //nolint:gosec // it is run
	modules, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)

	// With -P the clone's folder is the repository's own, so that what is compiled already is not compiled again.
	command := exec.Command("bash", "-P")
	command.Dir = room
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "MILLRACE_") {
			command.Env = append(command.Env, line)
		}
	}
	command.Env = append(command.Env, stack.Env()...)
	command.Env = append(command.Env,
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "PWD="+room, "GOWORK=off", "GOBIN=", withoutDWARF, "GOPATH="+filepath.Join(room, "go"),
		"GOMODCACHE="+strings.TrimSpace(string(modules)),
		"MILLRACE_POSTGRES_DSN="+dsn.String(), "MILLRACE_POSTGRES_SCHEMA="+schema, "PUBSUB_PROJECT_ID="+devtest.Project(t))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.WaitDelay = time.Minute
	output := new(buffer)
	command.Stdout, command.Stderr = output, output
	input, err := command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	shell := &tutorialBash{command: command, input: input, output: output, ended: make(chan error, 1)}
	go func() { shell.ended <- command.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // with what it started; of a shell that has ended there is nothing
		<-shell.ended
	})
	return shell
}

// run types commands and returns what they print, and one that failed; a wait for what was killed may.
func (b *tutorialBash) run(t *testing.T, commands string) (output, failed string) {
	t.Helper()
	before := len(b.output.String())
	_, err := io.WriteString(b.input, shellTraps+commands+"echo \"=== $failed\"\n")
	require.NoError(t, err, b.output)
	var ended []string
	look, deadline := time.NewTicker(10*time.Millisecond), time.Now().Add(2*time.Minute)
	defer look.Stop()
	for ended == nil {
		<-look.C
		require.True(t, time.Now().Before(deadline), "%s\ndoes not end, and prints\n%s", commands, b.output.String()[before:])
		ended = tutorialEnd.FindStringSubmatch(b.output.String()[before:])
	}
	return ended[1], ended[2]
}

// shellTraps have a shell remember a command that failed, and leave nothing behind when its input ends, as with a test that is killed.
const shellTraps = `failed=; trap '[[ $BASH_COMMAND = wait* ]] || failed=$BASH_COMMAND' ERR; trap 'kill -9 $(jobs -p) 2> /dev/null' EXIT` + "\n"

var tutorialEnd = regexp.MustCompile(`(?s)^(.*)=== ([^\n]*)\n$`)

// end leaves the shell.
func (b *tutorialBash) end(t *testing.T) {
	t.Helper()
	require.NoError(t, b.input.Close())
	select {
	case err := <-b.ended:
		b.ended <- err
		require.NoError(t, err, b.output)
	case <-time.After(time.Minute):
		t.Error("the shell does not end")
	}
}
