package step

import "time"

// Action is something the relay must do.
type Action interface{ action() }

type (
	// Renew renews the leases of the shards in Hold and takes free ones up to the fair share, but none in Shun.
	Renew struct {
		Hold       []int16
		Shun       []int16
		Left       int  // how many shards this relay leaves to others
		Struggling bool // it publishes nothing
		Topics     []TopicState
	}
	// LoadBlocked asks which keys have failed events, and what operators have set for topics.
	LoadBlocked struct{ Shards []Ref }
	// Read reads shards in one round trip.
	Read struct {
		Requests []Request
		Writers  bool // list the open writers first
	}
	// Rescan asks which rows exist up to the numbers that were read.
	Rescan struct{ Requests []RescanRequest }
	// Publish sends events of one topic. Nothing may be sent after Deadline.
	Publish struct {
		Ref
		Queue    string // the events' topic
		To       string // the topic that they are published to
		Rows     []*Row
		Noted    bool      // record the event in the shard's lease before it is sent
		Deadline time.Time // of the lease
	}
	// Delete deletes rows of published events.
	Delete struct{ Rows []ShardRow }
	// SetAside moves events to the failed events.
	SetAside struct {
		Ref
		Events []Aside
	}
	// FetchFailed carries out operators' commands and fetches due failed events.
	FetchFailed struct {
		Ref
		Heads, PerKey, Bytes int
		SkipTopics           []string
		SkipIDs              []int64  // of heads that are in flight
		Promote              []string // keys whose first event may be due, or that may have no failed event any more
	}
	// SettleFailed records the results of sent failed events.
	SettleFailed struct {
		Ref
		Done  []int64 // IDs
		Keys  []string
		Again []Again
	}
	// Poll asks in which shards failed events are due or have commands, and what operators have set for topics.
	Poll struct{ Shards []int16 }
	// RetryDead asks the holders of the leases to retry the dead events of a topic that failed with one of these errors.
	RetryDead struct {
		Topic   string
		Reasons []string
	}
	// MoveDelayed moves due delayed events into the outbox.
	MoveDelayed struct{ Limit int }
	// Release gives leases back.
	Release struct {
		Shards []int16
		Terms  []int64
	}
	// ClearSuspect clears the crash guard's record of a shard.
	ClearSuspect struct{ Ref }
	// EndLease ends what is running for a lease.
	EndLease struct{ Ref }
	// Report is for logs and metrics.
	Report struct {
		Kind   ReportKind
		Shard  int16
		Topic  string
		Action string // what failed
		Event  *Event // the first one
		Events []*Event
		Count  int
		Failed int
		Aside  []Aside
		In     time.Duration
		Err    error
	}
)

// ReportKind says what a Report is about.
type ReportKind int

// The kinds of Report.
const (
	ReportSettled    ReportKind = iota // Events were published, of Count
	ReportFailed                       // Failed keys of Topic failed; Event is the first, retried In
	ReportStands                       // the broker accepts no event of Topic, because of Err
	ReportGetsOn                       // the broker accepts events of Topic again, after In
	ReportPaused                       // an operator has paused Topic
	ReportResumed                      // an operator has resumed Topic
	ReportRedirected                   // an operator redirected Topic: its events are published to Action from now on
	ReportAside                        // Aside were set aside
	ReportSurprise                     // a row appeared below those that were read
	ReportCareful                      // a shard's events are sent one by one: Count relays ended while they held it
	ReportAccused                      // relays ended while they sent Event
	ReportStuck                        // the publisher did not return: the relay gives Shard back
	ReportRetried                      // Count dead events of Topic are retried, because events with the same error were published later
	ReportError                        // Action failed with Err
)

func (Renew) action()        {}
func (LoadBlocked) action()  {}
func (Read) action()         {}
func (Rescan) action()       {}
func (Publish) action()      {}
func (Delete) action()       {}
func (SetAside) action()     {}
func (FetchFailed) action()  {}
func (SettleFailed) action() {}
func (Poll) action()         {}
func (RetryDead) action()    {}
func (MoveDelayed) action()  {}
func (Release) action()      {}
func (ClearSuspect) action() {}
func (EndLease) action()     {}
func (Report) action()       {}

// InTime reports whether the events may be sent now. Call it right before sending, because the process may have been stopped since the
// core returned the action.
func (p Publish) InTime(now time.Time) bool { return Holds(p.Deadline, now) }

// Holds reports whether a lease with that deadline still holds. It compares monotonic and wall clock: the monotonic clock stops while a
// machine is suspended, and the wall clock may be set back.
func Holds(deadline, now time.Time) bool {
	return now.Before(deadline) && now.Round(0).Before(deadline.Round(0))
}
