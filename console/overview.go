package console

import (
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// overview is the content of the first page.
type overview struct {
	judgement
	Topics    []outboxadmin.TopicReport
	MoreNodes map[string]int // by column: how many are not drawn
	Lines     map[string]int // by column: how many nodes the line behind it is long
	Relays    []outboxadmin.RelayReport
	Consumers []consumer
	Effects   []provider
	Replays   []any // of dead letters, and of archived events
}

// judgement is what is wrong with a database.
type judgement struct {
	snapshot snapshot
	Verdict  verdict
	Wrong    []problem // what a person decides first
	Notes    []doctor.Finding
	Checked  time.Time // zero: not yet
	Checks   int
	Failure  string // of the checks
}

// verdict is the answer in one sentence.
type verdict struct {
	State      string // dead, retrying or done: its colour and shape
	Text, More string
}

// problem is a finding, with the page that helps.
type problem struct {
	doctor.Finding
	Person bool // a person decides; otherwise it recovers when its cause is gone
	Link   string
	Button string
}

// provider is what effects with the same beginning of their keys have in doubt.
type provider struct {
	Name string
	N    int
}

// maxNodes is how many nodes a column of the pipeline has.
const maxNodes = 6

func (q *request) overview() error {
	j := q.judge()
	s := j.snapshot
	o := overview{judgement: j, MoreNodes: map[string]int{}, Consumers: s.Consumers, Effects: providers(s)}
	for _, r := range q.replays(false) {
		o.Replays = append(o.Replays, r)
	}
	for _, r := range q.archiveReplays(false) {
		o.Replays = append(o.Replays, r)
	}
	if s.Outbox != nil {
		o.Topics, o.Relays = troubleFirst(s.Outbox.Topics), s.Outbox.Relays
	}
	o.Topics = cut(&o, "topics", o.Topics)
	o.Relays = cut(&o, "relays", o.Relays)
	o.Consumers = cut(&o, "consumers", o.Consumers)
	o.Effects = cut(&o, "effects", o.Effects)
	o.Lines = map[string]int{
		"topics": max(len(o.Topics), len(o.Relays)), "relays": max(len(o.Relays), len(o.Consumers)), "consumers": max(len(o.Consumers), len(o.Effects)),
	}
	q.render(200, "page_overview.html", "Overview", "overview", o)
	return nil
}

// judge has doctor look.
func (q *request) judge() judgement {
	s := q.snapshot()
	found, at, err := q.findings(s)
	j := judgement{snapshot: s, Checked: at, Checks: len(doctor.Checks()) - 1} // the broker is not asked
	if err != nil {
		j.Failure = said(err)
	}
	for _, f := range found {
		if f.Note {
			j.Notes = append(j.Notes, f)
			continue
		}
		j.Wrong = append(j.Wrong, q.problem(f))
	}
	slices.SortStableFunc(j.Wrong, func(a, b problem) int {
		switch {
		case a.Person == b.Person:
			return 0
		case a.Person:
			return -1
		}
		return 1
	})
	j.Verdict = j.conclude()
	return j
}

// cut keeps what the picture has room for.
func cut[T any](o *overview, column string, all []T) []T {
	if len(all) > maxNodes {
		o.MoreNodes[column] = len(all) - maxNodes
		return all[:maxNodes]
	}
	return all
}

// problem finds the page that helps. Who acts follows from the check: dead letters and doubts wait for a person.
func (q *request) problem(f doctor.Finding) problem {
	base := q.cfg.Prefix + "/" + q.db.Name
	p := problem{Finding: f}
	switch f.Check {
	case "dead-letters", "full-keys":
		p.Person, p.Link, p.Button = true, base+"/dead", "Open dead letters"
	case "effects":
		p.Person, p.Link, p.Button = true, base+"/effects", "Decide"
	case "outbox":
		p.Person = strings.Contains(f.Symptom, " dead in the outbox")
		p.Link, p.Button = base+"/outbox", "Open outbox"
	case "paused", "retries":
		p.Link, p.Button = base+"/dead?state=retrying", "Open retries"
	case "poison":
		p.Link, p.Button = base+"/outbox", "Open shards"
	}
	return p
}

// conclude says what is wrong, in one sentence.
func (j judgement) conclude() verdict {
	person := 0
	for _, p := range j.Wrong {
		if p.Person {
			person++
		}
	}
	others := len(j.Wrong) - person
	switch {
	case j.snapshot.Now.IsZero():
		return verdict{State: "dead", Text: "The database does not answer.", More: "Nothing is known of it since this console started."}
	case j.Checked.IsZero() && j.Failure != "":
		return verdict{State: "retrying", Text: "The checks have not run.", More: j.Failure}
	case person > 0:
		v := verdict{State: "dead", Text: plural(person, "thing needs a person.", "things need a person.")}
		if others > 0 {
			v.More = plural(others, "other recovers", "others recover") + " once the cause is gone."
		}
		return v
	case others > 0:
		return verdict{State: "retrying", Text: plural(others, "thing is wrong.", "things are wrong."), More: "It recovers once the cause is gone."}
	}
	return verdict{State: "done", Text: "Everything flows.", More: "Nothing waits for a person."}
}

// troubleFirst sorts topics that do not flow, then those with failed events, then the fullest.
func troubleFirst(topics []outboxadmin.TopicReport) []outboxadmin.TopicReport {
	sorted := slices.Clone(topics)
	rank := func(t outboxadmin.TopicReport) int {
		switch {
		case t.State == outboxadmin.TopicFailing:
			return 0
		case t.State != "":
			return 1
		case t.Failed > 0:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(sorted, func(a, b outboxadmin.TopicReport) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return int(b.Pending - a.Pending)
	})
	return sorted
}

// providers groups what is in doubt by the part of the key that stands before the event: service/sms.
func providers(s snapshot) (all []provider) {
	at := map[string]int{}
	for _, e := range s.Doubts {
		name := providerOf(e.Key)
		i, known := at[name]
		if !known {
			i = len(all)
			at[name] = i
			all = append(all, provider{Name: name})
		}
		all[i].N++
	}
	slices.SortStableFunc(all, func(a, b provider) int { return b.N - a.N })
	return all
}

// providerOf is the beginning of an effect's key: the service, and the next word.
func providerOf(key string) string {
	service, rest, _ := strings.Cut(key, "/")
	if i := strings.IndexAny(rest, "/:"); i >= 0 {
		rest = rest[:i]
	}
	return service + "/" + rest
}
