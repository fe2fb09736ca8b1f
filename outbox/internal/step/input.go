package step

import (
	"errors"
	"time"
)

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

// ErrLeaseOver is the result of an event that was not sent because the lease of its shard had expired.
var ErrLeaseOver = errors.New("the shard's lease has expired")
