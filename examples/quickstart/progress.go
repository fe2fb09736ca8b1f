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
	terminal bool
	last     time.Time
	text     string
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			p.terminal = st.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

func (p *progress) show(s state, events, kills, wanted int) {
	// Each labour counts three times: completed, notified, thanked.
	share := float64(s.completed+s.notified+s.thanked) / float64(3*events)
	const width = 30
	full := min(int(share*width), width)
	text := fmt.Sprintf("[%s%s] %3.0f %%  completed %d  notified %d  thanked %d  outbox %d  kills %d/%d",
		strings.Repeat("#", full), strings.Repeat(".", width-full), share*100, s.completed, s.notified, s.thanked, s.outbox, kills, wanted)
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r%-*s", len(p.text), text)
	case time.Since(p.last) >= 2*time.Second:
		p.last = time.Now()
		fmt.Fprintln(p.w, text)
	}
	p.text = text
}

func (p *progress) done(note string) {
	if p.terminal {
		fmt.Fprintln(p.w)
	} else {
		fmt.Fprintln(p.w, p.text)
	}
	fmt.Fprintln(p.w, note)
}
