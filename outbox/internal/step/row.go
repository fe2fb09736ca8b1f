// Package step has the words between a relay's core and those who carry out what it decides: rows and leases, actions, and the
// inputs that say what came of them. It decides nothing.
//
// Each action is reported by the input of the same row of this table:
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
package step

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

// Identity returns the row's.
func (r *Row) Identity() Identity { return Identity{r.Seq, r.EventID} }

// Event is a row that the relay holds.
type Event struct {
	Row

	// The rest is the core's. It stands here so that the core allocates nothing for each event.

	InQueue, OfKey any       // its topic queue and its key, of the core's own types
	Arrival        int64     // its place among the shard's events
	FailedAt       time.Time // the last time; zero: never
	Reason         string    // the error of that time
	Attempts       int32     // failures that were its own
	Leaving        bool      // published, or on its way to the failed events: its row still exists
	Moving         bool      // its move to the failed events was begun, and is not known to have ended
	Gone           bool      // its row no longer exists
}

// The states of a failed event.
const (
	Retrying = "retrying" // it failed, and is tried again
	Blocked  = "blocked"  // it waits for an earlier event of its key
	Dead     = "dead"     // a person decides about it
)

// ReasonCrash is the reason that is stored with an event that the crash guard sets aside.
const ReasonCrash = "the relay ended every time it sent this event"

// FailedRow is an event among the failed ones.
type FailedRow struct {
	Row
	ID       int64
	State    string
	Attempts int
	Reason   string // why it failed the last time
	Crash    bool   // relays ended while they sent it
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
