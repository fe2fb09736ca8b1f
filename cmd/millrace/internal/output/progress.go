package output

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace-go/millrace/internal/words"
)

// Progress is a line on a terminal that shows what takes longer than a second, and for how long. It is safe for concurrent use. Until
// Stop, write to the terminal only through its Writers.
type Progress struct {
	terminal Terminal
	to       io.Writer

	mu    sync.Mutex
	text  string // "": nothing to show
	since time.Time
	shown bool

	stop    chan struct{}
	running sync.WaitGroup
	once    sync.Once
}

// NewProgress starts to show progress. It never does without a terminal, or on one that cannot erase a line.
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

// Say sets the text. "" shows nothing.
func (p *Progress) Say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
	if text == "" {
		p.erase()
	}
}

// Stop erases the line and ends the Progress.
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

// Writer returns a writer that erases the line before it writes to w.
func (p *Progress) Writer(w io.Writer) io.Writer { return &erasing{p, w} }

// Behind returns the writer behind one of those Writers, for another program that needs the terminal. It returns any other w unchanged.
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
