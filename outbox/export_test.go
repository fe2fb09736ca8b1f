package outbox

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/landing"
	"github.com/millrace-go/millrace/outbox/internal/wal"
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

// WithWALBuffer changes how many bytes of rows the relay keeps that the WAL has shown.
func WithWALBuffer(r *Relay, bytes int) {
	r.wal.Buffer = wal.NewBuffer(bytes)
	r.source = wal.NewReader(r.reader, r.wal.Buffer, r.wakes)
}

// WALStatus returns for how many shards the WAL answers, and how often the rows of a shard were too many.
func WALStatus(r *Relay) (shards int, spills int64) {
	return r.wal.Buffer.Complete(), r.wal.Buffer.Spills()
}

// LandingStatus returns what the relay reports about the events in the WAL.
func LandingStatus(r *Relay) landing.Status { return r.landing.Status() }

// WithLandingPatience changes how long the relay that lands events may be silent before this one takes over.
func WithLandingPatience(r *Relay, patience time.Duration) { r.landing.Patience = patience }
