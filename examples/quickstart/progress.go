package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

// progress shows the progress: on a terminal as a block that is redrawn, otherwise as a line every two seconds.
type progress struct {
	w        io.Writer
	cast     *stage.Cast
	events   int
	kills    int // planned
	terminal bool
	colour   bool

	state    state // last read
	began    time.Time
	shown    time.Time // when it was last drawn
	drawn    []string  // the lines on the terminal
	said     string    // the last line, without a terminal
	killed   map[string]int
	killedAt map[string]time.Time
}

const (
	redraw = 200 * time.Millisecond // at most that often, except after a kill
	plain  = 2 * time.Second        // between two lines without a terminal
	flash  = time.Second            // how long a kill is shown
)

func newProgress(w io.Writer, c *stage.Cast, o options) *progress {
	return &progress{
		w: w, cast: c, events: o.events, kills: o.Kills, terminal: isTerminal(w), colour: hasColour(w),
		began: time.Now(), killed: map[string]int{}, killedAt: map[string]time.Time{},
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// hasColour reports whether the terminal shows colours and the user wants them: https://no-color.org.
func hasColour(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Colours of a terminal, as numbers of escape sequences.
const (
	red   = "31"
	green = "32"
	blue  = "34"
	dim   = "2"
	bold  = "1"
)

func paint(on bool, colour, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// Show implements stage.Progress.
func (p *progress) Show(string, int) {
	now := time.Now()
	kill := ""
	for role, n := range p.cast.Kills {
		if n > p.killed[role] {
			p.killed[role], p.killedAt[role], kill = n, now, role
		}
	}
	switch {
	case !p.terminal:
		if kill != "" {
			fmt.Fprintf(p.w, "SIGKILL %s, %d of %d\n", kill, p.total(), p.kills)
		}
		if now.Sub(p.shown) >= plain {
			p.shown = now
			p.say()
		}
	case kill != "" || now.Sub(p.shown) >= redraw:
		p.shown = now
		p.draw(now)
	}
}

// Done implements stage.Progress.
func (p *progress) Done(_, note string) {
	if p.terminal {
		p.draw(time.Now())
		fmt.Fprintf(p.w, "\n%s\n", note)
	} else {
		p.say()
		fmt.Fprintln(p.w, note)
	}
}

// say prints the line if it has changed.
func (p *progress) say() {
	if line := p.line(); line != p.said {
		p.said = line
		fmt.Fprintln(p.w, line)
	}
}

func (p *progress) total() (n int) {
	for _, k := range p.killed {
		n += k
	}
	return n
}

// line is the whole progress on one line, for output that is not a terminal.
func (p *progress) line() string {
	s := p.state
	done := s.completed + s.notified + s.thanked
	if done == 3*p.events && s.outbox == 0 {
		return "100 %: everything is done; waiting for messages that killed processes may still hold"
	}
	return fmt.Sprintf("%3d %%: %d labours completed, %d families notified, %d thanks counted, %d events in the outbox",
		100*done/(3*p.events), s.completed, s.notified, s.thanked, s.outbox)
}

// draw replaces the last block.
func (p *progress) draw(now time.Time) {
	lines := p.block(now)
	if slices.Equal(lines, p.drawn) {
		return
	}
	var out strings.Builder
	if len(p.drawn) > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", len(p.drawn))
	}
	for _, line := range lines {
		out.WriteString("\r" + line + "\x1b[K\n")
	}
	fmt.Fprint(p.w, out.String())
	p.drawn = lines
}

// block returns lines of less than 80 columns: a longer line would wrap on the terminal.
func (p *progress) block(now time.Time) []string {
	s := p.state
	lines := []string{
		"",
		p.bar("labours completed", s.completed),
		p.bar("families notified", s.notified),
		p.bar("thanks counted", s.thanked),
		"",
	}
	for i, role := range killedRoles {
		if p.kills == 0 {
			break
		}
		title := []string{"processes killed", "", ""}[i]
		text := strings.TrimSpace(strings.Repeat("✗ ", min(p.killed[role], 15)))
		if p.killed[role] > 15 {
			text += fmt.Sprintf(" and %d more", p.killed[role]-15)
		}
		line := fmt.Sprintf("  %-18s %-9s %s", title, role, paint(p.colour, red, text))
		if at, ok := p.killedAt[role]; ok && now.Sub(at) < flash {
			line += paint(p.colour, bold+";"+red, " SIGKILL")
		}
		lines = append(lines, line)
	}
	numbers := fmt.Sprintf("  %d in the outbox, %d duplicates absorbed, %d requests repeated, %.0f s",
		s.outbox, p.cast.Counts.Get("duplicates"), p.cast.Counts.Get("retries"), now.Sub(p.began).Seconds())
	return append(lines, "", paint(p.colour, dim, numbers))
}

func (p *progress) bar(name string, n int) string {
	const width = 30
	full := min(n*width/p.events, width)
	colour := blue
	if n >= p.events {
		colour = green
	}
	return fmt.Sprintf("  %-18s %s%s  %d of %d", name,
		paint(p.colour, colour, strings.Repeat("█", full)), paint(p.colour, dim, strings.Repeat("░", width-full)), n, p.events)
}
