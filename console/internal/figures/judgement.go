package figures

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/middleware/claim"
)

// Judgement is a verdict on a database, with the problems that were found.
type Judgement struct {
	Snapshot Snapshot
	Verdict  Verdict
	Wrong    []Problem // those that need a person first
	Notes    []doctor.Finding
	Checked  time.Time // zero: not checked yet
	Checks   int
	Failure  string // why the checks failed
}

// Verdict is a summary in one sentence.
type Verdict struct {
	State      string // dead, retrying or done: determines colour and shape
	Text, More string
}

// Problem is a finding of doctor, with a link to the page that helps.
type Problem struct {
	doctor.Finding
	Person bool // a person must decide; otherwise it recovers when its cause is gone
	Link   string
	Button string
}

// freshFindings is the maximum age of doctor's findings.
const freshFindings = 15 * time.Second

// Judge runs the checks of doctor. base is the path of the database's pages.
func (db Source) Judge(ctx context.Context, s Snapshot, base string) Judgement {
	found, at, err := db.findings(ctx, s)
	j := Judgement{Snapshot: s, Checked: at, Checks: len(doctor.Checks()) - 1} // the broker is not asked
	if err != nil {
		j.Failure = format.Error(err)
	}
	for _, f := range found {
		if f.Note {
			j.Notes = append(j.Notes, f)
			continue
		}
		j.Wrong = append(j.Wrong, problem(f, base))
	}
	slices.SortStableFunc(j.Wrong, func(a, b Problem) int {
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

// problem adds the link to a finding. Its check determines who acts: dead letters and effects in doubt need a person.
func problem(f doctor.Finding, base string) Problem {
	p := Problem{Finding: f}
	switch f.Check {
	case "dead-letters", "full-keys":
		p.Person, p.Link, p.Button = true, base+"/dead", "Open dead letters"
	case "effects":
		p.Person, p.Link, p.Button = true, base+"/effects", "Decide"
	case "outbox":
		p.Person = strings.Contains(f.Symptom, " dead in the outbox")
		p.Link, p.Button = base+"/outbox", "Open outbox"
	case "paused":
		p.Link, p.Button = base+"/consumers", "Open consumers"
	case "retries":
		p.Link, p.Button = base+"/dead?state=retrying", "Open retries"
	case "poison":
		p.Link, p.Button = base+"/outbox", "Open shards"
	}
	return p
}

// conclude summarizes the problems in one sentence.
func (j Judgement) conclude() Verdict {
	person := 0
	for _, p := range j.Wrong {
		if p.Person {
			person++
		}
	}
	others := len(j.Wrong) - person
	switch {
	case j.Snapshot.Now.IsZero():
		return Verdict{State: "dead", Text: "The database does not answer.", More: "Nothing is known of it since this console started."}
	case j.Checked.IsZero() && j.Failure != "":
		return Verdict{State: "retrying", Text: "The checks have not run.", More: j.Failure}
	case person > 0:
		v := Verdict{State: "dead", Text: format.Plural(person, "thing needs a person.", "things need a person.")}
		if others > 0 {
			v.More = format.Plural(others, "other recovers", "others recover") + " once the cause is gone."
		}
		return v
	case others > 0:
		return Verdict{State: "retrying", Text: format.Plural(others, "thing is wrong.", "things are wrong."), More: "It recovers once the cause is gone."}
	case j.Snapshot.Error != "":
		return Verdict{State: "dead", Text: "The database does not answer.", More: "What this page shows is from before."}
	}
	return Verdict{State: "done", Text: "Everything flows.", More: "Nothing waits for a person."}
}

// findings returns doctor's findings, and when they were made. If the database was just late, it returns the previous findings,
// because doctor would be late too. After another error it runs doctor, which can explain tables of another version.
func (db Source) findings(ctx context.Context, s Snapshot) ([]doctor.Finding, time.Time, error) {
	if s.Late {
		found, at := cache.Last[[]doctor.Finding](db.Cache, "doctor")
		return found, at, context.DeadlineExceeded
	}
	return cache.Get(ctx, db.Cache, "doctor", freshFindings, func(ctx context.Context) ([]doctor.Finding, error) {
		found, err := doctor.Examine(ctx, db.Pool, doctor.Config{
			Schema: db.Schema, Reach: db.Reach,
			Limits: doctor.Limits{Lag: time.Minute, Transaction: 15 * time.Minute, Retention: claim.DefaultRetention, Horizon: claim.DefaultRedeliveryHorizon},
		})
		if err != nil {
			return nil, fmt.Errorf("doctor: %w", err)
		}
		return found, nil
	})
}
