// Package step defines the actions that a relay's core asks for, the inputs that report their results, and the rows and leases in both.
// It decides nothing.
//
// Each action is answered by the input in the same row of this table:
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
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
)

// Identity identifies a row, even after a sequence was set back.
type Identity struct {
	Seq     int64
	EventID string
}

// Row is a row of the outbox.
type Row struct {
	Place   [6]byte // its ctid; zero: it was read from the WAL
	Seq     int64
	EventID string
	Topic   string
	Key     string // "" if it has none
	Headers []byte
	Payload []byte // nil if it was left out
	Size    int    // bytes of headers and payload, also if the payload was left out; 0: not known
	Written time.Time
	Read    time.Time // another relay may have published and deleted it after this time: when the request that found it was sent, or before
}

// Identity returns the row's identity.
func (r *Row) Identity() Identity { return Identity{r.Seq, r.EventID} }

// Event is a row that the relay holds.
type Event struct {
	Row

	// The other fields are the core's. They are here so that the core allocates nothing for each event.

	InQueue, OfKey any       // its topic queue and its key, of the core's own types
	Arrival        int64     // its position in the order in which the shard got its events
	FailedAt       time.Time // the last failure; zero: none
	Reason         string    // the error of that failure
	Attempts       int32     // failures that count against it
	Leaving        bool      // published, or to be moved to the failed events: its row still exists
	Moving         bool      // its move to the failed events has begun and may have happened
	Gone           bool      // its row no longer exists
}

// The states of a failed event.
const (
	Retrying = "retrying" // it failed, and is tried again
	Blocked  = "blocked"  // it waits for an earlier event of its key
	Dead     = "dead"     // an operator must decide about it
)

// ReasonCrash is the reason that is stored with an event that the crash guard sets aside.
const ReasonCrash = "the relay ended every time it sent this event"

// FailedRow is a row of the failed events.
type FailedRow struct {
	Row
	ID       int64
	State    string
	Attempts int
	Reason   string // the error of its last failure
	Crash    bool   // relays ended while they sent it
}

// Control is an operator's settings for a topic.
type Control struct {
	Topic  string
	Paused int64  // identifies this pause; 0: the topic is not paused
	To     string // the topic that its events are published to; "": itself
}

// The states of a topic whose events wait.
const (
	TopicPaused  = "paused"  // an operator paused it, and none of its events is in flight in this relay
	TopicFailing = "failing" // the broker accepts none of its events
	TopicSlow    = "slow"    // its batches take long, and further events wait for its share of the events in flight
)

// TopicState says why events of a topic wait in this relay.
type TopicState struct {
	Topic string
	State string
	Pause int64         // Control.Paused
	For   time.Duration // how long it has been in the state
	Next  time.Duration // until the next attempt; 0: none is planned
	Error string        // the last one
}

// Lease is this relay's lease of a shard.
type Lease struct {
	Shard         int16
	Term          int64  // the term of the shard's lease
	Deaths        int    // relays that ended while they held the shard, since events were last deleted
	Suspect       string // the ID of the event that one of them was sending alone
	SuspectDeaths int    // how many of them ended while they sent it
}

// Ref identifies a lease of a shard. A shard that was lost and taken again has a new Ref.
type Ref struct {
	Shard int16
	Lease uint64
	Term  int64 // of the shard's lease in the database
}

// ShardRow is a row to delete.
type ShardRow struct {
	Shard int16
	*Row
}

// Request says what a read looks for in one shard.
type Request struct {
	Ref
	Scan  bool     // return the sequence's value
	Table bool     // only the table has what it looks for: a scan, or rows that earlier reads left there or returned without payloads
	From  int64    // return rows above it
	Limit int      // at most this many
	Bytes int      // limit of all payloads together; payloads beyond it are left out, except the first
	Each  int      // limit of one payload; larger ones are left out, and Bytes is not checked; 0: no such limit
	List  []int64  // also return the rows with these numbers
	Hide  []string // topics whose payloads are left out

	Drain      string // also return rows of this topic, from DrainFrom to From
	DrainFrom  int64
	DrainLimit int // 0: none
}

// Found is what a read found in one shard. The Core then owns the events and keeps those that are new.
type Found struct {
	Last    int64    // the sequence's value
	Listed  []*Event // rows of Request.List, ascending
	Above   []*Event // rows above Request.From, ascending
	Drained []*Event // ascending
}

// Answer is the result of a read.
type Answer struct {
	Shards  []Found      // as in Read.Requests
	Writers gaps.Writers // that were open before the read; nil if the read did not ask
	Now     time.Time
	Moved   bool // another server answered, or it was restarted: nothing remembered is valid
}

// Unload drops the payloads of rows that were not read from the table, so that they are read there before they are sent.
func (a *Answer) Unload() {
	for _, f := range a.Shards {
		for _, e := range slices.Concat(f.Listed, f.Above) {
			if e.Place == [6]byte{} {
				e.Headers, e.Payload = nil, nil
			}
		}
	}
}

// RescanRequest asks which rows of a shard exist.
type RescanRequest struct {
	Ref
	UpTo  int64    // the highest number
	Limit int      // at most this many rows
	Skip  []string // topics whose rows are left out
}

// Aside is an event that moves to the failed events.
type Aside struct {
	*Event
	State    string
	Reason   string
	Attempts int
	RetryIn  time.Duration
}

// Again is a failed event that failed again.
type Again struct {
	ID       int64
	State    string
	Reason   string
	Attempts int
	RetryIn  time.Duration
}
