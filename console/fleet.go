package console

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/millrace-go/millrace/console/internal/assets"
	"github.com/millrace-go/millrace/console/internal/fanout"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/live"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// fleetPage is the data of page_fleet.html.
type fleetPage struct {
	Verdict                 figures.Verdict
	Members                 []member // those with trouble first
	Pending, Dead, Doubtful outboxadmin.Count
	Silent                  int // databases that do not answer
}

// member is a database on the page of all databases.
type member struct {
	Name string
	figures.Snapshot
	Verdict  figures.Verdict
	Wrong    []figures.Problem // at most maxProblems
	More     int               // number of further problems
	Failure  string            // why the checks failed
	Relays   int               // number of running relays
	Stopped  []outboxadmin.TopicReport
	Running  int // number of running replays
	severity int
}

// maxProblems is how many findings of a database the page of all databases shows.
const maxProblems = 3

// each returns a request for each database that the sender may see. Rights may depend on the path.
func (q *request) each() (all []*request) {
	for _, d := range q.cfg.Databases {
		r := guard.At(q.r, "/"+d.Name+"/")
		of := &request{Console: q.Console, db: q.databases[d.Name], w: q.w, r: r}
		if of.rights, of.user = q.authorize(r); of.rights.Has(Look) {
			all = append(all, of)
		}
	}
	return all
}

// all returns a handler for pages about all databases, for senders who may see the root or one of the databases.
func (c *Console) all(serve func(q *request, granted []*request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{Console: c, w: w, r: r}
		q.rights, q.user = c.authorize(r)
		granted := q.each()
		if !q.rights.Has(Look) && len(granted) == 0 {
			c.refuse(w, r)
			return
		}
		serve(q, granted)
	}
}

func (q *request) fleet(granted []*request) {
	p := fleetPage{Members: fanout.All(granted, (*request).member)}
	var versions []string
	var now time.Time
	for _, m := range p.Members {
		versions = append(versions, m.Fingerprint()+q.brokers.Fingerprint(m.Name))
		if m.Now.After(now) {
			now = m.Now // use the latest of their clocks for ages
		}
	}
	slices.SortStableFunc(p.Members, func(a, b member) int { return cmp.Compare(b.severity, a.severity) })
	trouble := 0
	for _, m := range p.Members {
		if m.severity > 0 {
			trouble++
		}
		if m.Error != "" {
			p.Silent++
		}
		if m.Outbox != nil {
			p.Pending = plus(p.Pending, m.Outbox.Pending)
		}
		p.Dead, p.Doubtful = plus(p.Dead, m.Dead), plus(p.Doubtful, m.InDoubt)
		unknown := func(part string) bool { return m.Now.IsZero() || m.Errors[part] != "" }
		p.Pending.AtLeast = p.Pending.AtLeast || unknown("outbox")
		p.Dead.AtLeast, p.Doubtful.AtLeast = p.Dead.AtLeast || unknown("consumers"), p.Doubtful.AtLeast || unknown("effects")
	}
	p.Verdict = figures.Verdict{State: "done", Text: "Everything flows.", More: "Nothing waits for a person in any database."}
	if trouble > 0 {
		p.Verdict = p.Members[0].Verdict // the colour of the worst database
		p.Verdict.Text, p.Verdict.More = format.Number(trouble)+" of "+format.Plural(len(p.Members), "database", "databases")+words.Pick(trouble, " has", " have")+" trouble.", ""
	}
	v := q.view("All databases", "fleet", p)
	if !q.rights.Has(Look) {
		v.User, v.Rights = granted[0].user, granted[0].rights // the token stays that of this path
	}
	v.Live, v.Version, v.Now = q.cfg.Prefix+"/"+assets.Folder+"/live", live.Version(versions), now
	q.write(http.StatusOK, "page_fleet.html", v)
}

// member returns the row of a database: a summary of its own first page.
func (q *request) member() member {
	o := q.judge()
	m := member{Name: q.db.Name, Snapshot: o.Snapshot, Verdict: o.Verdict.With(q.brokers.Lately(q.db.Name)), Failure: o.Failure, Running: len(q.replays(false)) + len(q.archiveReplays(false))}
	m.Wrong = o.Wrong[:min(len(o.Wrong), maxProblems)]
	m.More = len(o.Wrong) - len(m.Wrong)
	if m.Error != "" {
		m.Verdict, m.Failure = figures.Verdict{State: "dead", Text: "It does not answer."}, "" // the checks failed for the same reason
	}
	m.severity = map[string]int{"retrying": 1, "dead": 2}[m.Verdict.State]
	if m.Outbox == nil {
		return m
	}
	for _, relay := range m.Outbox.Relays {
		if relay.Alive {
			m.Relays++
		}
	}
	for _, topic := range m.Topics {
		if topic.State != "" {
			m.Stopped = append(m.Stopped, topic.TopicReport)
		}
	}
	return m
}

// Failed returns how many events of the outbox are in the state.
func (m member) Failed(state string) outboxadmin.Count { return m.Outbox.Failed[state] }

func plus(a, b outboxadmin.Count) outboxadmin.Count {
	return outboxadmin.Count{N: a.N + b.N, AtLeast: a.AtLeast || b.AtLeast}
}

// liveFleet streams changes of the page of all databases. Rights are checked when the stream begins.
func (q *request) liveFleet(granted []*request) {
	user := q.user
	for _, of := range granted { // whose name may depend on the path
		user = cmp.Or(user, of.user)
	}
	q.streams.Serve(q.w, q.r, user, func() string { return live.Version(fanout.All(granted, (*request).now)) })
}
