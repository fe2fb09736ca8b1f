package step

import (
	"errors"
	"time"
)

// Input is something that happened.
type Input interface{ input() }

type (
	// Renewed answers Renew.
	Renewed struct {
		Began  time.Time // before the request was sent
		Asked  []int16   // Renew.Hold
		Held   []Lease   // the leases that are held now
		Fair   int       // how many this relay should hold
		Shards int       // how many there are
		Err    error
	}
	// BlockedLoaded answers LoadBlocked.
	BlockedLoaded struct {
		Shards   []Ref
		Keys     map[int16][]string
		Controls []Control // of all topics with settings
		Err      error
	}
	// ReadDone answers Read.
	ReadDone struct {
		Answer
		Err error
	}
	// Rescanned answers Rescan.
	Rescanned struct {
		Rows [][]Identity // as in Rescan.Requests
		Err  error
	}
	// Published answers Publish.
	Published struct {
		Ref
		Queue   string
		Results []error // one for each row; nil: the broker acknowledged it
	}
	// Deleted answers Delete.
	Deleted struct{ Err error }
	// WasSetAside answers SetAside.
	WasSetAside struct {
		Ref
		Leased bool // this relay still had the lease
		Moved  int
		Err    error
	}
	// FailedFetched answers FetchFailed. Each group holds the due events of one key in order, or one event without a key.
	FailedFetched struct {
		Ref
		Groups [][]FailedRow
		Freed  []string // keys without a failed event, of FetchFailed.Promote and of those that commands changed
		More   bool     // more events are due
		Err    error
	}
	// FailedSettled answers SettleFailed. Left are those of its keys that still have failed events, Freed those that have none.
	FailedSettled struct {
		Ref
		Left, Freed []string
		Err         error
	}
	// Polled answers Poll.
	Polled struct {
		Due      []int16
		Controls []Control // as in BlockedLoaded
		Err      error
	}
	// DeadRetried answers RetryDead.
	DeadRetried struct {
		RetryDead
		Events int
		Err    error
	}
	// DelayedMoved answers MoveDelayed. Next is the time until the next event is due, or 0 if there is none.
	DelayedMoved struct {
		Moved int
		Next  time.Duration
		Err   error
	}
	// Released answers Release.
	Released struct {
		Shards []int16 // Release.Shards
		Err    error
	}
	// SuspectCleared answers ClearSuspect.
	SuspectCleared struct{ Err error }
	// Woken says that shards may have new events.
	Woken struct {
		Shards []int16
		All    bool
		Look   bool // operators may have given commands
	}
	// Stop makes the relay finish what is in flight and start nothing new.
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

// ErrLeaseOver is the result of an event that was not sent because its shard's lease had expired.
var ErrLeaseOver = errors.New("the shard's lease has expired")
