package crashguard

import "maps"

// The limits of the crash guard with transactional delivery.
const (
	// MaxStarts is how many processes may end uncleanly with the same messages of a partition in flight before these messages run alone.
	// Running alone is slow, and a broker outage that costs members their sessions looks like unclean ends. So the limit is higher than
	// the number of brokers in a small cluster that may restart one after the other.
	MaxStarts = 4
	// MaxAlone is how many processes may end uncleanly while a message runs alone in them before it is rejected.
	MaxAlone = 3
	// mostAlone bounds the note, because brokers accept 4,096 bytes.
	mostAlone = 50
)

// Guard decides for one assignment of a partition to this process. It is not safe for concurrent use; its owner may guard it.
//
// A process commits a note of its start before it delivers the first message. The note is cleared when the partition gives back the
// assignment, or when all messages are done that may have been in flight in earlier processes. So a note that a process finds at its
// start comes from a process that ended uncleanly. After MaxStarts such processes the partition is suspicious: its messages run one after
// the other, alone in the process. The note of a message's start is committed before it runs, and the note of its end after it.
type Guard struct {
	window int // how many messages this process may have in flight
	starts int // processes that ended uncleanly
	left   int // messages not yet done that may have been in flight in those processes, or are in flight in this one
	until  int64
	alone  map[int64]int

	begun    bool // messages run together, and the note says so
	passed   bool // all messages that may have been in flight are done
	released bool

	running int64 // the offset of the message that runs alone; negative: none
	before  int   // that message's count before it started

	said string // the last note
}

// New begins an assignment with the group's note. window is how many messages a process may have in flight.
func New(read Note, window int) *Guard {
	g := &Guard{window: window, starts: read.Starts, left: read.Left, alone: maps.Clone(read.Alone), running: -1}
	if g.alone == nil {
		g.alone = map[int64]int{}
	}
	g.said = read.String()
	return g
}

// Suspicious reports whether messages run alone.
func (g *Guard) Suspicious() bool { return !g.begun && !g.passed && g.starts >= MaxStarts }

// Until sets the partition's end at the start. Later messages were in flight in no earlier process.
func (g *Guard) Until(end int64) {
	if g.until == 0 {
		g.until = end
	}
}

// Begin lets messages run together. The first call returns the note that must be committed before.
func (g *Guard) Begin() (note string, commit bool) {
	if g.begun || g.passed || g.released {
		return "", false
	}
	g.begun, g.left = true, max(g.left, g.window)
	return g.say(), true
}

// Try is called before the message at the offset runs alone. It returns the note that must be committed before, or that the message is
// rejected.
func (g *Guard) Try(offset int64) (note string, rejected bool) {
	if g.alone[offset] >= MaxAlone {
		return "", true
	}
	if len(g.alone) >= mostAlone && g.alone[offset] == 0 {
		clear(g.alone)
	}
	g.running, g.before = offset, g.alone[offset]
	g.alone[offset]++
	return g.say(), false
}

// Survived is called after the handler of the message that runs alone has ended.
func (g *Guard) Survived() {
	delete(g.alone, g.running)
	g.running = -1
}

// Withdrawn is called if the message was to run alone, but no handler got it.
func (g *Guard) Withdrawn() {
	if g.running < 0 {
		return
	}
	g.alone[g.running] = g.before
	if g.before == 0 {
		delete(g.alone, g.running)
	}
	g.running = -1
}

// Done is called when all messages up to next are done. It returns the note to commit with them.
func (g *Guard) Done(messages int, next int64) (note string) {
	maps.DeleteFunc(g.alone, func(offset int64, _ int) bool { return offset < next })
	g.left -= messages
	if g.left <= 0 || g.until > 0 && next >= g.until {
		g.passed, g.starts, g.left = true, 0, 0
		clear(g.alone)
	}
	return g.say()
}

// Note returns the note that the group should have now.
func (g *Guard) Note() string { return g.say() }

// Release ends the assignment cleanly. It returns the note to commit, if it differs from the group's.
func (g *Guard) Release() (note string, commit bool) {
	g.Withdrawn()
	g.released = true
	before := g.said
	return g.say(), g.said != before
}

func (g *Guard) say() string {
	note := Note{}
	switch {
	case g.passed:
	case g.begun && !g.released:
		note = Note{Starts: min(g.starts+1, MaxStarts), Left: g.window}
	case g.starts > 0:
		note = Note{Starts: min(g.starts, MaxStarts), Left: g.left, Alone: g.alone}
	}
	g.said = note.String()
	return g.said
}
