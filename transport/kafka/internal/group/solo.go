package group

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/crashguard"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
)

// solo is the crash guard of a partition with transactional delivery, and its message that runs alone.
type solo struct {
	guard    *crashguard.Guard // nil without a claim
	end      func() int64      // the partition's end
	together bool              // the note of the start is committed
	phase    soloPhase
	entry    *lane.Entry
}

// soloPhase is the phase of the message that runs alone.
type soloPhase int

const (
	soloNone     soloPhase = iota
	soloStarting           // the note of its start is being committed
	soloRunning            // it is delivered
	soloEnding             // the note of its end is being committed
)

// guard begins an assignment with the group's note. The caller holds mu.
func (p *partitionConsumer) guard(claim sarama.ConsumerGroupClaim, metadata string) {
	var note crashguard.Note
	if claim.InitialOffset() >= 0 { // otherwise the note is about other messages
		note = crashguard.Parse(metadata)
	}
	window := 2 * (p.config.Concurrency + p.config.Prefetch + p.config.Transactions.MaxRecords)
	p.solo = solo{guard: crashguard.New(note, window), end: claim.HighWaterMarkOffset}
	if p.solo.guard.Suspicious() {
		p.log.Warn("processes have ended uncleanly with messages of this partition in flight: they run one at a time, until the one is found that kills its process",
			slog.Int("partition", int(p.number)), slog.Int64("offset", claim.InitialOffset()), slog.Int("messages", note.Left))
	}
}

// unguard ends the assignment. The caller holds mu.
func (p *partitionConsumer) unguard() {
	p.shared.Gate.Open(p)
	p.solo = solo{}
}

// giveBack commits that the assignment has ended cleanly.
func (p *partitionConsumer) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.txn == nil {
		return
	}
	if note, commit := p.solo.guard.Release(); commit {
		p.txn.Mark(p.next.Load(), note)
	}
}

// ready reports whether a message should be delivered now. Otherwise due is when, if that is known; a message that waits for a
// transaction or for the gate is woken. The caller holds mu.
func (p *partitionConsumer) ready(now time.Time) (ready bool, due time.Time) {
	switch ready, due = p.lane.Waits(now); {
	case p.txn == nil:
		return ready, due
	case p.solo.phase != soloNone || p.solo.guard.Suspicious():
		return p.soloReady(ready, now), due
	}
	return ready && p.together(), due
}

// take returns the message to deliver now, or nil if the gate keeps it out. The caller holds mu.
func (p *partitionConsumer) take(now time.Time) *lane.Entry {
	if !p.shared.Gate.Enter(p) {
		return nil
	}
	if p.solo.phase == soloStarting {
		p.solo.phase = soloRunning
		return p.solo.entry
	}
	return p.lane.Take(now)
}

// together reports whether messages may run together, which needs the note of the start to be committed.
func (p *partitionConsumer) together() bool {
	s := &p.solo
	if !s.together {
		s.guard.Until(s.end())
		if note, commit := s.guard.Begin(); commit {
			p.txn.Mark(p.next.Load(), note)
		}
		s.together = p.txn.Marked()
	}
	return s.together
}

// soloReady reports whether the chosen message may run alone. If none is chosen, it chooses the next one when the lane is ready.
func (p *partitionConsumer) soloReady(ready bool, now time.Time) bool {
	s := &p.solo
	if s.phase == soloEnding && p.txn.Marked() {
		p.shared.Gate.Open(p)
		s.phase, s.entry = soloNone, nil
	}
	if s.phase == soloNone {
		if !ready || !s.guard.Suspicious() {
			return ready && p.together()
		}
		if !p.shared.Gate.Close(p) {
			return false
		}
		p.soloTake(now)
	}
	return s.phase == soloStarting && p.txn.Marked()
}

func (p *partitionConsumer) soloTake(now time.Time) {
	s := &p.solo
	s.guard.Until(s.end())
	e := p.lane.Take(now)
	note, rejected := s.guard.Try(e.Offset)
	if !rejected {
		s.phase, s.entry = soloStarting, e
		p.txn.Mark(p.next.Load(), note)
		return
	}
	p.shared.Gate.Open(p)
	e.Attempts = crashguard.MaxAlone
	p.running.Go(func() {
		p.settleDead(e, deadKilled, fmt.Errorf("%d processes ended uncleanly while this message ran alone in them", crashguard.MaxAlone))
	})
}

// putBackSolo puts back the message whose start was being committed.
func (p *partitionConsumer) putBackSolo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.solo.phase == soloStarting {
		p.solo.phase = soloEnding
		p.solo.guard.Withdrawn()
		p.lane.PutBack(p.solo.entry)
	}
}

// endSolo reports whether the ended delivery ran alone. The caller holds mu and commits the note.
func (p *partitionConsumer) endSolo(d ending) bool {
	if p.solo.phase != soloRunning || p.solo.entry != d.entry {
		return false
	}
	p.solo.phase = soloEnding
	if d.outcome == lane.Withdrawn {
		p.solo.guard.Withdrawn()
	} else {
		p.solo.guard.Survived()
	}
	return true
}
