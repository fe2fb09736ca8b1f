package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows a bar where a person looks, and a line every two seconds elsewhere.
type progress struct {
	w        io.Writer
	kills    int // that there will be
	terminal bool
	last     time.Time
	text     string
}

func newProgress(w io.Writer, kills int) *progress {
	p := &progress{w: w, kills: kills}
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			p.terminal = st.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

// bar is how far things are: each labour counts three times, completed, notified, thanked.
func (s state) bar(events int) string {
	share := float64(s.completed+s.notified+s.thanked) / float64(3*events)
	const width = 30
	full := min(int(share*width), width)
	return fmt.Sprintf("[%s%s] %3.0f %%  completed %d  notified %d  thanked %d  outbox %d",
		strings.Repeat("#", full), strings.Repeat(".", width-full), share*100, s.completed, s.notified, s.thanked, s.outbox)
}

// Show implements stage.Progress.
func (p *progress) Show(line string, killed int) {
	text := fmt.Sprintf("%s  kills %d/%d", line, killed, p.kills)
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r%-*s", len(p.text), text)
	case time.Since(p.last) >= 2*time.Second:
		p.last = time.Now()
		fmt.Fprintln(p.w, text)
	}
	p.text = text
}

// Done implements stage.Progress.
func (p *progress) Done(_, note string) {
	if p.terminal {
		fmt.Fprintln(p.w)
	} else {
		fmt.Fprintln(p.w, p.text)
	}
	fmt.Fprintln(p.w, note)
}
