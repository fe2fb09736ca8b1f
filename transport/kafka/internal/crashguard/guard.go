package crashguard

import "maps"

// The limits of transactional delivery.
const (
	// MaxStarts is how many processes may end uncleanly with the same messages of a partition in flight before these run alone. That is
	// slow, and an outage of brokers that costs members their sessions looks like unclean ends: so it is more than the brokers of a small
	// cluster that restart one after the other.
	MaxStarts = 4
	// MaxAlone is how many processes may end uncleanly while a message runs alone in them before it is rejected.
	MaxAlone = 3
	// mostAlone bounds the note: brokers take 4,096 bytes.
	mostAlone = 50
)

// Guard decides for one assignment of a partition to this process. It belongs to one goroutine, or its owner guards it.
//
// A process commits the note of its start before it hands out the first message. The note goes when the partition gives back the
// assignment, or when all is done that may have been in flight in the processes before. So a note that a process finds at the start is
// that of a process that ended uncleanly. After MaxStarts such processes the partition is suspicious: one message after the other runs
// alone in the process, and the note of its start is committed before, and that of its end after it.
type Guard struct {
	window int // messages that this process may have in flight
	starts int // processes that ended uncleanly
	left   int // messages that are not done yet of those that were in flight in them, or are in this one
	until  int64
	alone  map[int64]int

	begun    bool // messages run together, and the note says so
	passed   bool // all is done that may have been in flight
	released bool

	running int64 // the offset that runs alone; negative: none
	before  int   // its count before

	said string // the latest note
}

// New begins an assignment with the note that the group has. A process may have as many messages in flight as window says.
func New(read Note, window int) *Guard {
	g := &Guard{window: window, starts: read.Starts, left: read.Left, alone: maps.Clone(read.Alone), running: -1}
	if g.alone == nil {
		g.alone = map[int64]int{}
	}
	g.said = read.String()
	return g
}

// Suspicious tells whether messages run alone.
func (g *Guard) Suspicious() bool { return !g.begun && !g.passed && g.starts >= MaxStarts }

// Until tells where the partition ends at the start: what comes later was in flight in no process before.
func (g *Guard) Until(end int64) {
	if g.until == 0 {
		g.until = end
	}
}

// Begin lets messages run together. The first time it returns the note that is to be committed before.
func (g *Guard) Begin() (note string, commit bool) {
	if g.begun || g.passed || g.released {
		return "", false
	}
	g.begun, g.left = true, max(g.left, g.window)
	return g.say(), true
}

// Try is called before the message at the offset runs alone. It returns the note that is to be committed before, or that the message is
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

// Survived is called when the handler of the message that runs alone has ended.
func (g *Guard) Survived() {
	delete(g.alone, g.running)
	g.running = -1
}

// Withdrawn is called when the message was to run alone, and no handler got it.
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

// Done is called when messages are done up to next, and returns the note to commit with them.
func (g *Guard) Done(messages int, next int64) (note string) {
	maps.DeleteFunc(g.alone, func(offset int64, _ int) bool { return offset < next })
	g.left -= messages
	if g.left <= 0 || g.until > 0 && next >= g.until {
		g.passed, g.starts, g.left = true, 0, 0
		clear(g.alone)
	}
	return g.say()
}

// Note is what the group should keep now.
func (g *Guard) Note() string { return g.say() }

// Release ends the assignment cleanly. It returns the note that is to be committed, if it is another one than the group has.
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
