package history

import (
	"strconv"
	"strings"
)

// Claimed is the state of an event of a consumer.
type Claimed struct {
	Holder int // client; 0: free
	Done   bool
}

// Claim is the model of a claim. Clients are numbered from 1.
//
//	enter        the handler runs and has done its first write
//	commit       the claim is completed
//	rollback     it is not completed: since some moment after enter the event is free, as after a lost connection
//	lost         the connection was lost: perhaps a rollback
//	unknown      the commit's answer was lost: perhaps a commit
//	never        the claim failed before the handler's first write: it may have held the event
//	completed    the client learned that the event was processed
//	contended    the client learned that another client has it, which promises nothing
//	read         the client counted the handler's writes: value
var Claim = Model[Claimed]{Step: func(s Claimed, op Operation) []Claimed {
	free, done := Claimed{Done: s.Done}, Claimed{Done: true}
	mine := s.Holder == op.Client
	switch op.Name {
	case "enter":
		return when(s == Claimed{}, Claimed{Holder: op.Client})
	case "commit":
		return when(mine, done)
	case "rollback":
		return when(mine, free)
	case "unknown":
		if mine {
			return []Claimed{free, done}
		}
		return []Claimed{s}
	case "lost":
		if mine {
			return []Claimed{free, s}
		}
		return []Claimed{s}
	case "never", "contended":
		return []Claimed{s}
	case "completed":
		return when(s.Done, s)
	case "read":
		want := 0
		if s.Done {
			want = 1
		}
		return when(op.Value == strconv.Itoa(want), s)
	}
	return nil
}}

// Stored is the state of an idempotency key: the first request, and its execution.
type Stored struct{ Request, Execution string }

// Request is the model of an idempotency key. An operation's value is "request/execution".
//
//	executed     the client's own execution: value
//	replayed     the response of an earlier one: value
//	reused       the request is not the first one's: value
//	running      the first request is running, which promises nothing
//	nothing      the client learned that nothing was changed
//	unknown      its own execution may have taken effect: value
//	read         the client saw the writes of one execution: value, whose request is empty; or none
var Request = Model[Stored]{Step: func(s Stored, op Operation) []Stored {
	given := stored(op.Value)
	none := s == Stored{}
	switch op.Name {
	case "executed":
		return when(none, given)
	case "replayed":
		return when(s == given, s)
	case "reused":
		return when(!none && s.Request != given.Request, s)
	case "running", "nothing":
		return []Stored{s}
	case "unknown":
		if none {
			return []Stored{s, given}
		}
		return []Stored{s}
	case "read":
		return when(s.Execution == given.Execution, s)
	}
	return nil
}}

// Leased is the state of a shard.
type Leased struct {
	Holder int // client; 0: free
	Term   string
}

// Lease is the model of a shard's lease. Clients are numbered from 1.
//
//	take       the client holds the lease, for the term that value names
//	expire     that term is over by the client's clock
//	release    the client gave the lease back, or asked for that
var Lease = Model[Leased]{Step: func(s Leased, op Operation) []Leased {
	switch op.Name {
	case "take":
		return when(s.Holder == 0 || s.Holder == op.Client, Leased{op.Client, op.Value})
	case "expire":
		if s == (Leased{op.Client, op.Value}) {
			return []Leased{{}}
		}
		return []Leased{s}
	case "release":
		if s.Holder == op.Client {
			return []Leased{{}}
		}
		return []Leased{s}
	}
	return nil
}}

// Called is the state of an effect.
type Called struct {
	State string // "" none, "intent" of a call that is never made, "calling", "doubt", "done"
	Call  string // the one that is under way or done
}

// Effect is the model of an effect, of a provider that honours no idempotency keys.
//
//	call        the provider is called: value
//	done        the call succeeded, and that is recorded: value
//	not done    the call certainly had no effect: value
//	doubt       nobody knows about the call: value
//	unknown     the call succeeded; it may be recorded: value
//	never       the client failed before it called: its intent may be recorded: value
//	withdrawn   the same, and the intent may be withdrawn: value
//	response    the client learned that the call succeeded: value
//	in doubt    the client learned that the effect is in doubt
//	running     the client learned that a call may be under way
var Effect = Model[Called]{Step: func(s Called, op Operation) []Called {
	mine := s == Called{"calling", op.Value}
	switch op.Name {
	case "call":
		return when(s == Called{}, Called{"calling", op.Value})
	case "done":
		return when(mine, Called{"done", op.Value})
	case "not done":
		return when(mine, Called{}, Called{State: "doubt"})
	case "doubt":
		return when(mine, Called{State: "doubt"})
	case "unknown":
		return when(mine, Called{"done", op.Value}, Called{State: "doubt"})
	case "never":
		if s == (Called{}) {
			return []Called{s, {"intent", op.Value}}
		}
		return []Called{s}
	case "withdrawn":
		if s == (Called{"intent", op.Value}) {
			return []Called{s, {}}
		}
		return []Called{s}
	case "response":
		return when(s == Called{"done", op.Value}, s)
	case "in doubt", "running":
		return when(s.State == "intent" || s.State == "calling" || s.State == "doubt", s)
	}
	return nil
}}

func when[S any](possible bool, next ...S) []S {
	if !possible {
		return nil
	}
	return next
}

func stored(value string) Stored {
	request, execution, _ := strings.Cut(value, "/")
	return Stored{request, execution}
}
