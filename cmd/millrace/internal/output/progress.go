package output

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/words"
)

// Progress is a line on a terminal that says what takes longer than a second, and for how long it has. It is safe for
// concurrent use. Stop it, and write to the terminal through its Writers alone meanwhile.
type Progress struct {
	terminal Terminal
	to       io.Writer

	mu    sync.Mutex
	text  string // "": nothing is to be said
	since time.Time
	shown bool

	stop    chan struct{}
	running sync.WaitGroup
	once    sync.Once
}

// NewProgress begins to tell; it never does where there is no terminal, or one on which a line cannot be erased.
func NewProgress(to io.Writer, terminal Terminal) *Progress {
	p := &Progress{terminal: terminal, to: to, since: time.Now(), stop: make(chan struct{})}
	if terminal.Is() && !terminal.Dumb {
		p.running.Go(p.run)
	}
	return p
}

func (p *Progress) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.draw()
		}
	}
}

func (p *Progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text == "" {
		return
	}
	line := fmt.Sprintf("%s … %s", p.text, words.Duration(time.Since(p.since)))
	fmt.Fprint(p.to, "\r\x1b[K", p.terminal.Dim(words.Cut(line, p.terminal.Width-1)))
	p.shown = true
}

// Say sets what is going on; "" is for nothing that a person waits for.
func (p *Progress) Say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
	if text == "" {
		p.erase()
	}
}

// Stop ends the line.
func (p *Progress) Stop() {
	p.once.Do(func() { close(p.stop) })
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *Progress) erase() {
	if p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}

// Writer erases the line before anything is written to w.
func (p *Progress) Writer(w io.Writer) io.Writer { return &erasing{p, w} }

// Behind is what one of those Writers writes to, for another program that wants the terminal; any other w is itself.
func Behind(w io.Writer) io.Writer {
	if e, ok := w.(*erasing); ok {
		return e.w
	}
	return w
}

type erasing struct {
	p *Progress
	w io.Writer
}

func (e *erasing) Write(b []byte) (int, error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	e.p.erase()
	return e.w.Write(b)
}
