package outbox

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
)

// WithoutGaps makes the relay forget gaps: what it reads, it reads in the order of the numbers alone.
func WithoutGaps(r *Relay) { r.gaps = func() gaps.Tracker { return &blind{} } }

// blind is a gaps.Tracker that knows only the highest number.
type blind struct{ hi int64 }

func (b *blind) From() int64                  { return b.hi }
func (b *blind) List() []int64                { return nil }
func (b *blind) Scanning() (scanning, _ bool) { return false, false }
func (b *blind) Curious() bool                { return false }
func (b *blind) Forget(int64)                 { b.hi = 0 }

func (b *blind) Learn(v gaps.View) bool {
	for _, n := range v.Numbers {
		b.hi = max(b.hi, n)
	}
	return false
}

// WithCrashPause changes how long an event is set aside that relays were sending when they ended.
func WithCrashPause(r *Relay, d time.Duration) { r.pause = d }

// WithJournal changes how often the relay writes what it has counted.
func WithJournal(r *Relay, every time.Duration) { r.journal = every }

// WithoutDurabilityCheck makes the relay publish what may not be on disk yet.
func WithoutDurabilityCheck(r *Relay) { r.reader.Undurable = func(uint32) bool { return false } }
