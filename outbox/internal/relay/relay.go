// Package relay decides what a relay does: which rows it reads, which events it sends next, what a failure means for an event,
// its key and its topic, when it takes and gives back a shard. It does no I/O, has no clock and starts no goroutine.
//
// A Core gets typed inputs by [Core.Apply]: what a read found, what the broker answered, what a renewal of the leases
// brought. [Core.Next] returns what to do now as typed actions. Package outbox carries them out and reports each by the
// input of the same row of this table:
//
//	Renew         Renewed
//	LoadBlocked   BlockedLoaded
//	Read          ReadDone
//	Rescan        Rescanned
//	Publish       Published
//	Delete        Deleted
//	SetAside      WasSetAside
//	FetchFailed   FailedFetched
//	SettleFailed  FailedSettled
//	Poll          Polled
//	RetryDead     DeadRetried
//	MoveDelayed   DelayedMoved
//	Release       Released
//	ClearSuspect  SuspectCleared
//	EndLease      none
//	Report        none
package relay

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
)

// Identity tells rows apart, also after a sequence was set back.
type Identity struct {
	Seq     int64
	EventID string
}

// Row is an event as it stands in the table.
type Row struct {
	Place   [6]byte // its ctid
	Seq     int64
	EventID string
	Topic   string
	Key     string // "" when it has none
	Headers []byte
	Payload []byte // nil when it was left out
	Size    int    // bytes of headers and payload, also where the payload was left out; 0: not known
	Written time.Time
	Read    time.Time // when the request that found it was sent
}

func (r *Row) identity() Identity { return Identity{r.Seq, r.EventID} }

// Event is a row that the relay holds.
type Event struct {
	Row

	arrival  int64 // its place among the shard's events
	queue    *queue
	key      *key
	leaving  bool      // published, or on its way to the failed events: its row still exists
	moving   bool      // its move to the failed events was begun, and is not known to have ended
	gone     bool      // its row no longer exists
	failedAt time.Time // the last time; zero: never
	reason   string    // the error of that time
	attempts int       // failures that were its own
}

// The states of a failed event.
const (
	Retrying = "retrying" // it failed, and is tried again
	Blocked  = "blocked"  // it waits for an earlier event of its key
	Dead     = "dead"     // a person decides about it
)

// FailedRow is an event among the failed ones.
type FailedRow struct {
	Row
	ID       int64
	State    string
	Attempts int
	Reason   string // why it failed the last time
	Crash    bool   // relays ended while they sent it

	queue *queue
}

// Control is what operators have set for a topic.
type Control struct {
	Topic  string
	Paused int64  // tells this pause from earlier ones; 0: the topic is not paused
	To     string // the topic that its events are published to; "": itself
}

// The states of a topic whose events wait.
const (
	TopicPaused  = "paused"  // by an operator, and none of its events is in flight in this relay
	TopicFailing = "failing" // the broker takes none of its events
	TopicSlow    = "slow"    // its batches take long, and others wait for its share of what may be in flight
)

// TopicState is why events of a topic wait in this relay.
type TopicState struct {
	Topic string
	State string
	Pause int64         // Control.Paused
	For   time.Duration // it has been in the state
	Next  time.Duration // until the next attempt; 0: none is planned
	Error string        // the last one
}

// Lease is a shard that this relay may work on.
type Lease struct {
	Shard         int16
	Term          int64  // that of the shard's leases
	Deaths        int    // relays that ended while they held the shard, since events were last deleted
	Suspect       string // the event that one of them was sending alone, by its ID
	SuspectDeaths int    // how many of them ended while they sent it
}

// Ref is a lease of a shard. A shard that is lost and taken again has another Ref.
type Ref struct {
	Shard int16
	Lease uint64
}

// ShardRow is a row to be deleted.
type ShardRow struct {
	Shard int16
	*Row
}

// Request is what a read is to find in one shard.
type Request struct {
	Ref
	Scan  bool     // ask for the sequence's value
	From  int64    // rows above it
	Limit int      // at most so many
	Bytes int      // of all payloads together; those beyond are left out, but never the first one
	Each  int      // of a payload; larger ones are left out, and Bytes need not be summed; 0: no such bound
	List  []int64  // and the rows with these numbers
	Hide  []string // topics whose payloads are left out

	Drain      string // and rows of this topic, from DrainFrom to From
	DrainFrom  int64
	DrainLimit int // 0: none

	fetch []int64 // those of the list whose payloads were left out before
}

// Found is what a read found in one shard. The events are the Core's from then on: it holds those that are new.
type Found struct {
	Last    int64    // the sequence's value
	Listed  []*Event // rows of Request.List, ascending
	Above   []*Event // rows above Request.From, ascending
	Drained []*Event // ascending
}

// Answer is what a round trip found.
type Answer struct {
	Shards  []Found      // as in Read.Requests
	Writers gaps.Writers // that were open before the read; nil when it did not ask
	Now     time.Time
	Moved   bool // another server answered, or it was restarted: nothing remembered holds
}

// RescanRequest asks for rows of a shard that the relay should hold.
type RescanRequest struct {
	Ref
	UpTo  int64    // the highest number
	Limit int      // at most so many rows
	Skip  []string // topics whose rows are left out
}

// Aside is an event on its way to the failed ones.
type Aside struct {
	*Event
	State    string
	Reason   string
	Attempts int
	RetryIn  time.Duration
}

// Again is a failed event that failed once more.
type Again struct {
	ID       int64
	State    string
	Reason   string
	Attempts int
	RetryIn  time.Duration
}

// Action is what the relay is to do.
type Action interface{ action() }

type (
	// Renew renews the leases of the shards in Hold and takes free ones up to the fair share, but none in Shun.
	Renew struct {
		Hold       []int16
		Shun       []int16
		Left       int  // how many shards this relay leaves to others
		Struggling bool // it gets nothing published
		Topics     []TopicState
	}
	// LoadBlocked asks which keys have failed events, and what operators have set for topics.
	LoadBlocked struct{ Shards []Ref }
	// Read reads shards in one round trip.
	Read struct {
		Requests []Request
		Writers  bool // list the open writers before
	}
	// Rescan asks which rows there are below the numbers that were read.
	Rescan struct{ Requests []RescanRequest }
	// Publish sends events of one topic. Nothing may be sent after Deadline.
	Publish struct {
		Ref
		Queue    string // the events' topic
		To       string // the topic that they are published to
		Rows     []*Row
		Noted    bool      // note the event in the shard's lease before it is sent
		Deadline time.Time // the lease's
	}
	// Delete deletes rows that were published.
	Delete struct{ Rows []ShardRow }
	// SetAside moves events to the failed ones.
	SetAside struct {
		Ref
		Events []Aside
	}
	// FetchFailed carries out operators' commands and fetches failed events that are due.
	FetchFailed struct {
		Ref
		Heads, PerKey, Bytes int
		SkipTopics           []string
		SkipIDs              []int64  // heads that are in flight
		Promote              []string // keys whose first event may be due, or that may have none any more
		PromoteAll           bool     // any key's first event may be due
	}
	// SettleFailed records the results of failed events that were sent.
	SettleFailed struct {
		Ref
		Done  []int64 // IDs
		Keys  []string
		Again []Again

		heads []int64
		first string // the ID of the first event that was sent
		queue *queue
	}
	// Poll asks in which shards failed events are due or commanded, and what operators have set for topics.
	Poll struct{ Shards []int16 }
	// RetryDead asks the holders of the leases to retry the dead events of a topic that failed with these errors.
	RetryDead struct {
		Topic   string
		Reasons []string
	}
	// MoveDelayed moves delayed events that are due into the outbox.
	MoveDelayed struct{ Limit int }
	// Release gives leases back.
	Release struct {
		Shards []int16
		Terms  []int64
	}
	// ClearSuspect clears what the crash guard has recorded for a shard.
	ClearSuspect struct{ Ref }
	// EndLease ends what is under way for a lease.
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
	ReportStands                       // the broker takes nothing of Topic, because of Err
	ReportGetsOn                       // the broker takes events of Topic again, after In
	ReportPaused                       // an operator has paused Topic
	ReportResumed                      // an operator has resumed Topic
	ReportRedirected                   // an operator has Topic's events published to Action from now on
	ReportAside                        // Aside were set aside
	ReportSurprise                     // a row appeared below those that were read
	ReportCareful                      // a shard's events are sent one by one: Count relays ended while they held it
	ReportAccused                      // relays ended while they sent Event
	ReportStuck                        // the publisher did not return: the relay gives Shard back
	ReportRetried                      // Count dead events of Topic are retried, because others that had failed as they did were published
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

// Input is what happened.
type Input interface{ input() }

type (
	// Renewed ends Renew.
	Renewed struct {
		Began  time.Time // before the request was sent
		Asked  []int16   // Renew.Hold
		Held   []Lease   // that are held now
		Fair   int       // how many this relay should hold
		Shards int       // how many there are
		Err    error
	}
	// BlockedLoaded ends LoadBlocked.
	BlockedLoaded struct {
		Shards   []Ref
		Keys     map[int16][]string
		Controls []Control // of all topics for which something is set
		Err      error
	}
	// ReadDone ends Read.
	ReadDone struct {
		Answer
		Err error
	}
	// Rescanned ends Rescan.
	Rescanned struct {
		Rows [][]Identity // as in Rescan.Requests
		Err  error
	}
	// Published ends Publish.
	Published struct {
		Ref
		Queue   string
		Results []error // one for each row; nil: the broker acknowledged it
	}
	// Deleted ends Delete.
	Deleted struct{ Err error }
	// WasSetAside ends SetAside.
	WasSetAside struct {
		Ref
		Leased bool // the lease was still this relay's
		Moved  int
		Err    error
	}
	// FailedFetched ends FetchFailed. Each group is the due events of one key in order, or one event without key.
	FailedFetched struct {
		Ref
		Groups [][]FailedRow
		Freed  []string // of FetchFailed.Promote and of the keys that commands changed: those that have no failed event
		More   bool     // others are due
		Err    error
	}
	// FailedSettled ends SettleFailed. Left are those of its keys that still have failed events, Freed those that have none.
	FailedSettled struct {
		Ref
		Left, Freed []string
		Err         error
	}
	// Polled ends Poll.
	Polled struct {
		Due      []int16
		Controls []Control // as in BlockedLoaded
		Err      error
	}
	// DeadRetried ends RetryDead.
	DeadRetried struct {
		RetryDead
		Events int
		Err    error
	}
	// DelayedMoved ends MoveDelayed. Next is the time until the next one is due; 0: none waits.
	DelayedMoved struct {
		Moved int
		Next  time.Duration
		Err   error
	}
	// Released ends Release.
	Released struct {
		Shards []int16 // Release.Shards
		Err    error
	}
	// SuspectCleared ends ClearSuspect.
	SuspectCleared struct{ Err error }
	// Woken says that shards may have new events.
	Woken struct {
		Shards []int16
		All    bool
		Look   bool // operators may have given commands
	}
	// Stop makes the relay finish what is in flight and take nothing new.
	Stop struct{}
)

func (Renewed) input()        {}
func (BlockedLoaded) input()  {}
func (ReadDone) input()       {}
func (Rescanned) input()      {}
func (Published) input()      {}
func (Deleted) input()        {}
func (WasSetAside) input()    {}
func (FailedFetched) input()  {}
func (FailedSettled) input()  {}
func (Polled) input()         {}
func (DeadRetried) input()    {}
func (DelayedMoved) input()   {}
func (Released) input()       {}
func (SuspectCleared) input() {}
func (Woken) input()          {}
func (Stop) input()           {}
