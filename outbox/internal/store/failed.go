package store

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// SetAside moves events to the failed events in one transaction.
func (r *Relay) SetAside(ctx context.Context, a step.SetAside) step.WasSetAside {
	n := len(a.Events)
	seqs, ids, hashes, states := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
	attempts, reasons, retry := make([]int32, n), make([]string, n), make([]int32, n)
	for i, e := range a.Events {
		seqs[i], ids[i], hashes[i], states[i] = e.Seq, e.EventID, Hash(e.Key, e.EventID), e.State
		attempts[i], reasons[i], retry[i] = int32(e.Attempts), printable(e.Reason), int32(e.RetryIn.Milliseconds())
	}
	answer := step.WasSetAside{Ref: a.Ref}
	answer.Err = r.transact(ctx, statement{
		sql: r.sql.move,
		args: []argument{
			smallint(a.Shard), id(r.id), int8s(seqs), texts(ids), int8s(hashes), texts(states), int4s(attempts), texts(reasons), int4s(retry), bigint(a.Term),
		},
		row: func(v [][]byte) error {
			answer.Leased, answer.Moved = asInt8(v[0]) > 0, int(asInt8(v[1]))
			return nil
		},
	})
	return answer
}

// promote makes the first events of these keys due.
func (r *Relay) promote(shard int16, keys []string) statement {
	return statement{sql: r.sql.promote, args: []argument{smallint(shard), int8s(hashesOf(keys)), texts(keys)}}
}

// maxCommands is how many commands one transaction carries out and how many keys it promotes. An operator may discard any number of
// events at once, and a statement has a time limit.
const maxCommands = 1000

// FetchFailed carries out operators' commands, except on events that are in flight, then promotes events, then fetches due failed events.
func (r *Relay) FetchFailed(ctx context.Context, a step.FetchFailed) step.FailedFetched {
	answer, keys, sent := step.FailedFetched{Ref: a.Ref}, a.Promote, time.Now()
	for n := maxCommands; n >= maxCommands; {
		n = 0
		answer.Err = r.transact(ctx, statement{sql: r.sql.commands, args: []argument{smallint(a.Shard), integer(maxCommands), int8s(a.SkipIDs), id(r.id), bigint(a.Term)}, row: func(v [][]byte) error {
			if n++; len(v[0]) > 0 {
				keys = append(keys, string(v[0]))
			}
			return nil
		}})
		if answer.Err != nil {
			return answer
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	last, heads, left, rest := int64(0), 0, map[string]bool{}, keys
	for ; len(rest) > maxCommands; rest = rest[maxCommands:] {
		part := rest[:maxCommands]
		if answer.Err = r.transact(ctx, inOrder, r.promote(a.Shard, part), r.left(a.Shard, part, left)); answer.Err != nil {
			return answer
		}
	}
	answer.Err = r.transact(ctx, inOrder, r.promote(a.Shard, rest), r.left(a.Shard, rest, left), statement{
		sql: r.sql.fetch,
		args: []argument{
			smallint(a.Shard), integer(a.Heads), int8s(a.SkipIDs), texts(a.SkipTopics), integer(a.PerKey), bigint(int64(a.Bytes)),
		},
		row: func(v [][]byte) error {
			e := step.FailedRow{
				ID: asInt8(v[1]), State: string(v[2]), Attempts: asInt4(v[3]), Reason: string(v[4]), Crash: string(v[4]) == step.ReasonCrash,
				Row: step.Row{
					Seq: asInt8(v[5]), EventID: string(v[6]), Topic: string(v[7]), Key: string(v[8]),
					Headers: someHeaders(v[9]), Payload: append([]byte{}, v[10]...), Written: asTime(v[11]), Read: sent,
				},
			}
			if head := asInt8(v[0]); head != last {
				answer.Groups, last = append(answer.Groups, nil), head
			}
			g := &answer.Groups[len(answer.Groups)-1]
			*g = append(*g, e)
			heads = int(asInt8(v[12]))
			return nil
		},
	})
	answer.More = heads > len(answer.Groups) || heads == a.Heads
	answer.Freed, _ = freed(keys, left)
	return answer
}

// SettleFailed records the results of sent failed events.
func (r *Relay) SettleFailed(ctx context.Context, a step.SettleFailed) step.FailedSettled {
	n := len(a.Again)
	ids, states, attempts, reasons, retry := make([]int64, n), make([]string, n), make([]int32, n), make([]string, n), make([]int32, n)
	for i, e := range a.Again {
		ids[i], states[i], attempts[i], reasons[i], retry[i] = e.ID, e.State, int32(e.Attempts), printable(e.Reason), int32(e.RetryIn.Milliseconds())
	}
	keys := slices.DeleteFunc(slices.Clone(a.Keys), func(k string) bool { return k == "" })
	answer, left := step.FailedSettled{Ref: a.Ref}, map[string]bool{}
	answer.Err = r.transact(ctx, r.flushed(
		statement{sql: r.sql.done, args: r.signed(int8s(a.Done))},
		statement{sql: r.sql.again, args: []argument{int8s(ids), texts(states), int4s(attempts), texts(reasons), int4s(retry)}},
		inOrder,
		r.promote(a.Shard, keys),
		r.left(a.Shard, keys, left))...)
	if answer.Err != nil {
		answer.Err = r.archived(ctx, answer.Err)
		return answer
	}
	answer.Freed, answer.Left = freed(keys, left)
	return answer
}

// left records which of these keys have failed events.
func (r *Relay) left(shard int16, keys []string, left map[string]bool) statement {
	return statement{sql: r.sql.left, args: []argument{smallint(shard), int8s(hashesOf(keys)), texts(keys)}, row: func(v [][]byte) error {
		left[string(v[0])] = true
		return nil
	}}
}

func hashesOf(keys []string) []int64 {
	hashes := make([]int64, len(keys))
	for i, k := range keys {
		hashes[i] = Hash(k, "")
	}
	return hashes
}

// freed separates the keys without failed events from those that have some.
func freed(keys []string, left map[string]bool) (free, rest []string) {
	for _, k := range keys {
		if left[k] {
			rest = append(rest, k)
		} else {
			free = append(free, k)
		}
	}
	return free, rest
}

// RetryDead marks dead events whose error has gone away.
func (r *Relay) RetryDead(ctx context.Context, a step.RetryDead) step.DeadRetried {
	answer := step.DeadRetried{RetryDead: a}
	reasons := make([]string, len(a.Reasons))
	for i, reason := range a.Reasons {
		reasons[i] = printable(reason)
	}
	answer.Err = r.transact(ctx, statement{sql: r.sql.retryDead, args: []argument{text(a.Topic), texts(reasons)}, row: func(v [][]byte) error {
		answer.Events = int(asInt8(v[0]))
		return nil
	}})
	return answer
}

// maxReason bounds the stored text of an error.
const maxReason = 2000

// printable returns the error's text, shortened and without characters that a text column refuses.
func printable(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	clean := make([]rune, 0, len(reason))
	for _, c := range reason { // an invalid byte becomes U+FFFD
		if c != 0 {
			clean = append(clean, c)
		}
	}
	return string(clean)
}
