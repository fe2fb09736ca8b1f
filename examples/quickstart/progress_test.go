package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

func testProgress(t *testing.T, w *bytes.Buffer, terminal bool) *progress {
	t.Helper()
	c := stage.NewGoroutines(t.Context(), nil)
	t.Cleanup(c.Close)
	p := newProgress(w, c, options{Common: stage.Common{Kills: 20}, events: 200})
	p.terminal = terminal
	return p
}

func TestProgressInLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := testProgress(t, &out, false)
		p.state = state{completed: 50, notified: 30, thanked: 10, outbox: 7}
		p.Show("", 0)
		p.Show("", 0)
		p.cast.Kills["relay"]++
		p.Show("", 1)
		time.Sleep(plain)
		p.state = state{completed: 200, notified: 200, thanked: 200}
		p.Show("", 1)
		p.Done("", "done")
		assert.Equal(t, " 15 %: 50 labours completed, 30 families notified, 10 thanks counted, 7 events in the outbox\n"+
			"SIGKILL relay, 1 of 20\n"+
			"100 %: everything is done; waiting for messages that killed processes may still hold\n"+
			"done\n", out.String())
	})
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := testProgress(t, &out, true)
		p.state = state{completed: 100}
		p.Show("", 0)
		first := out.String()
		assert.Contains(t, first, "labours completed  "+strings.Repeat("█", 15)+strings.Repeat("░", 15)+"  100 of 200")
		assert.NotContains(t, first, "✗")
		for line := range strings.Lines(strings.ReplaceAll(first, "\x1b[K", "")) {
			assert.Less(t, utf8.RuneCountInString(line), 80, line)
		}
		p.Show("", 0)
		assert.Equal(t, first, out.String(), "nothing is new")

		out.Reset()
		p.cast.Kills["api"]++
		p.Show("", 1)
		assert.True(t, strings.HasPrefix(out.String(), "\x1b[10A\r"), "it begins where the block before began: %q", out.String())
		assert.Equal(t, 10, strings.Count(first, "\n"))
		assert.Contains(t, out.String(), "api       ✗ SIGKILL")

		out.Reset()
		time.Sleep(flash)
		p.Show("", 1)
		assert.Contains(t, out.String(), "api       ✗\x1b[K")
	})
}
