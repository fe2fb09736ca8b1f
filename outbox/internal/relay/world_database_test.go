package relay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

func (w *world) sorted(shard int16) []*worldRow {
	var rows []*worldRow
	for _, r := range w.rows {
		if r.shard == shard {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *worldRow) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows
}

func (w *world) controls() (list []step.Control) {
	set := maps.Clone(w.paused)
	for name := range w.redirects {
		set[name] = w.paused[name]
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		list = append(list, step.Control{Topic: name, Paused: set[name], To: w.redirects[name]})
	}
	return list
}

// discard is an operator's: it discards pending events of a paused topic once each relay has said that it knows of the pause.
func (w *world) discard(topic string, limit int) {
	pause := w.paused[topic]
	if pause == 0 {
		return
	}
	for _, n := range w.nodes {
		holds := slices.ContainsFunc(slices.Collect(maps.Values(w.leases)), func(l *worldLease) bool { return l.relay == n.id && l.expires.After(w.now) })
		knows := slices.ContainsFunc(n.topics, func(s step.TopicState) bool {
			return s.Topic == topic && s.State == step.TopicPaused && s.Pause == pause
		})
		if n.expires.After(w.now) && holds && !knows {
			return
		}
	}
	w.rows = slices.DeleteFunc(w.rows, func(r *worldRow) bool {
		if r.Topic != topic || limit == 0 {
			return false
		}
		limit--
		w.discarded[r.EventID] = w.published[r.EventID]
		w.history = append(w.history, fmt.Sprintf("%s event %s is discarded", w.now.Format("05.000"), r.EventID))
		return true
	})
}

func (w *world) read(a step.Read) (answer step.Answer) {
	answer.Now = w.now
	if a.Writers {
		answer.Writers = gaps.Writers{}
		for _, t := range w.open {
			answer.Writers[t.name] = struct{}{}
		}
	}
	for _, q := range a.Requests {
		f := step.Found{}
		if q.Scan {
			f.Last = w.sequences[q.Shard]
		}
		bytes := 0
		row := func(r *worldRow, hide bool) *step.Event {
			copied := &step.Event{Row: r.Row}
			if hide || q.Each > 0 && r.Size > q.Each || q.Each == 0 && bytes > 0 && bytes >= q.Bytes {
				copied.Payload = nil
			}
			if !hide {
				bytes += r.Size
			}
			return copied
		}
		rows := w.sorted(q.Shard)
		for _, r := range rows {
			if slices.Contains(q.List, r.Seq) {
				f.Listed = append(f.Listed, row(r, false))
			}
		}
		for _, r := range rows {
			if r.Seq > q.From && len(f.Above) < q.Limit {
				f.Above = append(f.Above, row(r, slices.Contains(q.Hide, r.Topic)))
			}
		}
		for _, r := range rows {
			if r.Topic == q.Drain && r.Seq >= q.DrainFrom && r.Seq <= q.From && len(f.Drained) < q.DrainLimit {
				f.Drained = append(f.Drained, row(r, false))
			}
		}
		answer.Shards = append(answer.Shards, f)
	}
	return answer
}

func (w *world) delete(shard int16, id step.Identity) (found *worldRow) {
	w.rows = slices.DeleteFunc(w.rows, func(r *worldRow) bool {
		if r.shard == shard && r.Identity() == id {
			found = r
			return true
		}
		return false
	})
	return found
}

func (w *world) rowOf(id string) *worldRow {
	for _, r := range w.rows {
		if r.EventID == id {
			return r
		}
	}
	for _, f := range w.failed {
		if f.EventID == id {
			return f.worldRow
		}
	}
	for _, r := range w.binned {
		if r.EventID == id {
			return r
		}
	}
	return nil
}

func (w *world) isPoison(r *step.Row) bool {
	row := w.rowOf(r.EventID)
	return row != nil && row.poison
}

// publish is the broker. A poison message ends the relay.
func (w *world) publish(n *node, a step.Publish) (results []error, ok bool) {
	t, refuse := w.topic(a.To), w.topic(a.Queue).refuse
	results = make([]error, len(a.Rows))
	if !n.core.rules.sends(a, w.now) {
		for i := range results {
			results[i] = step.ErrLeaseOver
		}
		return results, true
	}
	if l := w.leases[a.Shard]; a.Noted && l.relay == n.id {
		if id := a.Rows[0].EventID; l.noted == l.suspect && l.noted != id {
			l.suspect, l.suspectDeaths = "", map[int]bool{}
		}
		l.noted = a.Rows[0].EventID
	}
	if t.wedged || n.wedged == a.To {
		return nil, false
	}
	bad := map[string]bool{}
	for i, r := range a.Rows {
		w.sends++
		w.sent[r.EventID]++
		row := w.rowOf(r.EventID)
		switch {
		case w.isPoison(r):
			n.dead = true
			return nil, false
		case t.down || n.down:
			results[i] = errDown
		case r.Key != "" && bad[r.Key]:
			results[i] = errDown // as ErrNotSent
		case refuse[r.EventID] != nil:
			results[i] = refuse[r.EventID]
			bad[r.Key] = true
		default:
			t.took++
			w.took(n, r, row)
		}
	}
	if l := w.leases[a.Shard]; a.Noted && results[0] != nil && l.relay == n.id {
		if l.noted == l.suspect {
			l.suspect, l.suspectDeaths = "", map[int]bool{}
		}
		l.noted = ""
	}
	return results, true
}

func (w *world) took(n *node, r *step.Row, row *worldRow) {
	w.published[r.EventID]++
	w.history = append(w.history, fmt.Sprintf("%s relay %d sends %s: key %s, topic %s, number %d", w.now.Format("05.000"), n.id, r.EventID, r.Key, r.Topic, r.Seq))
	if row == nil || r.Key == "" || w.published[r.EventID] > 1 {
		return
	}
	if w.first[r.Key] > row.n {
		w.overtaken = append(w.overtaken, fmt.Sprintf("event %d of key %s after event %d", row.n, r.Key, w.first[r.Key]))
	}
	w.first[r.Key] = max(w.first[r.Key], row.n)
}

func (w *world) setAside(n *node, a step.SetAside) step.WasSetAside {
	l := w.leases[a.Shard]
	if l.relay != n.id || l.term != a.Term {
		return step.WasSetAside{Ref: a.Ref}
	}
	moved := 0
	for _, e := range a.Events {
		r := w.delete(a.Shard, e.Identity())
		if r == nil {
			continue
		}
		moved++
		w.lastID++
		w.failed = append(w.failed, &worldFailed{worldRow: r, id: w.lastID, state: e.State, attempts: e.Attempts, reason: e.Reason, at: w.now.Add(e.RetryIn)})
		if e.State == step.Dead {
			w.dead[e.EventID] = e.Reason
		}
	}
	return step.WasSetAside{Ref: a.Ref, Leased: true, Moved: moved}
}

// firstOf reports whether a failed event has none of its key before it.
func (w *world) firstOf(f *worldFailed) bool {
	return f.Key == "" || !slices.ContainsFunc(w.failed, func(o *worldFailed) bool { return o.Key == f.Key && o.id < f.id })
}

func (w *world) promote(shard int16, keys []string) {
	for _, f := range w.failed {
		if f.shard == shard && f.state == step.Blocked && slices.Contains(keys, f.Key) && w.firstOf(f) {
			f.state, f.at = step.Retrying, w.now
		}
	}
}

func (w *world) fetch(n *node, a step.FetchFailed) step.FailedFetched {
	var groups [][]step.FailedRow
	var touched []string
	l := w.leases[a.Shard]
	w.failed = slices.DeleteFunc(w.failed, func(f *worldFailed) bool {
		if l.relay != n.id || l.term != a.Term || f.shard != a.Shard || f.command == "" || slices.Contains(a.SkipIDs, f.id) {
			return false
		}
		touched = append(touched, f.Key)
		if f.command == "discard" {
			w.dead[f.EventID] = "discarded"
			w.binned = append(w.binned, f.worldRow)
			return true
		}
		if f.state != step.Blocked {
			f.state, f.at = step.Retrying, w.now
			if f.command == "retry" {
				f.attempts = 0
			}
		}
		f.command = ""
		return false
	})
	w.promote(a.Shard, slices.Concat(a.Promote, touched))
	for _, f := range w.failed {
		if f.shard != a.Shard || f.state != step.Retrying || f.at.After(w.now) || !w.firstOf(f) || slices.Contains(a.SkipIDs, f.id) ||
			slices.Contains(a.SkipTopics, f.Topic) || len(groups) == a.Heads {
			continue
		}
		var group []step.FailedRow
		for _, o := range w.failed {
			if o == f || f.Key != "" && o.Key == f.Key && o.id > f.id && len(group) < a.PerKey {
				group = append(group, step.FailedRow{Row: o.Row, ID: o.id, State: o.state, Attempts: o.attempts, Reason: o.reason, Crash: o.reason == step.ReasonCrash})
			}
		}
		groups = append(groups, group)
	}
	answer := step.FailedFetched{Ref: a.Ref, Groups: groups}
	for _, k := range slices.Concat(a.Promote, touched) {
		if !slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.Key == k }) {
			answer.Freed = append(answer.Freed, k)
		}
	}
	return answer
}

func (w *world) retryDead(a step.RetryDead) step.DeadRetried {
	answer := step.DeadRetried{RetryDead: a}
	for _, f := range w.failed {
		if f.state == step.Dead && f.command == "" && f.Topic == a.Topic && slices.Contains(a.Reasons, f.reason) {
			f.command = "recover"
			answer.Events++
		}
	}
	return answer
}

func (w *world) settle(a step.SettleFailed) step.FailedSettled {
	w.failed = slices.DeleteFunc(w.failed, func(f *worldFailed) bool { return slices.Contains(a.Done, f.id) })
	for _, g := range a.Again {
		for _, f := range w.failed {
			if f.id == g.ID {
				f.state, f.reason, f.attempts, f.at = g.State, g.Reason, g.Attempts, w.now.Add(g.RetryIn)
				if g.State == step.Dead {
					w.dead[f.EventID] = g.Reason
				}
			}
		}
	}
	w.promote(a.Shard, a.Keys)
	answer := step.FailedSettled{Ref: a.Ref}
	for _, k := range a.Keys {
		switch {
		case k == "":
		case slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.Key == k }):
			answer.Left = append(answer.Left, k)
		default:
			answer.Freed = append(answer.Freed, k)
		}
	}
	return answer
}

// renew is what the statements of the leases do.
func (w *world) renew(n *node, a step.Renew, began time.Time) step.Renewed {
	n.expires, n.struggling, n.shunned, n.topics = w.now.Add(worldTTL), a.Struggling, a.Left, a.Topics
	alive, well, left := 0, 0, 0
	for _, o := range w.nodes {
		if o.expires.After(w.now) {
			alive++
			if o != n {
				left += o.shunned
			}
			if !o.struggling {
				well++
			}
		}
	}
	fair := 0
	switch {
	case !n.struggling:
		fair = (int(w.shards)+well-1)/max(well, 1) + left
	case well == 0:
		fair = (int(w.shards) + alive - 1) / alive
	}
	answer := step.Renewed{Began: began, Asked: a.Hold, Fair: fair, Shards: int(w.shards)}
	count := len(a.Hold)
	for _, s := range slices.Sorted(maps.Keys(w.leases)) {
		l := w.leases[s]
		mine := l.relay == n.id && slices.Contains(a.Hold, s)
		free := (!l.expires.After(w.now) || l.relay == n.id) && count < fair && !slices.Contains(a.Hold, s) && !slices.Contains(a.Shun, s)
		if !mine && !free {
			continue
		}
		if !mine {
			l.term++
			count++
			if l.relay >= 0 && l.relay != n.id {
				l.deaths[l.relay] = true
				if l.noted != "" && l.noted != l.suspect {
					l.suspect, l.suspectDeaths = l.noted, map[int]bool{}
				}
				if l.noted != "" {
					l.suspectDeaths[l.relay] = true
				}
			}
			if l.relay != n.id {
				l.noted = ""
			}
		}
		l.relay, l.expires = n.id, w.now.Add(worldTTL)
		// A relay that is still there did not end.
		ended := func(set map[int]bool) (count int) {
			for id := range set {
				if !w.nodes[id].expires.After(w.now) {
					count++
				}
			}
			return count
		}
		answer.Held = append(answer.Held, step.Lease{Shard: s, Term: l.term, Deaths: ended(l.deaths), Suspect: l.suspect, SuspectDeaths: ended(l.suspectDeaths)})
	}
	return answer
}
