package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// What a database cannot be brought to quickly.
func TestExplainConcludes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	last := func(e evidence, place string) Stage {
		e.eventID, e.now = "e1", now
		var found Stage
		for _, s := range e.explain().Stages {
			if s.Place == place {
				found = s
			}
		}
		return found
	}
	located := func(l outboxadmin.Location) evidence {
		l.Written = *ago(time.Hour)
		return evidence{outbox: &[]outboxadmin.Location{l}}
	}
	claimed := func(l deadletter.Location) evidence {
		l.Consumer = "notify"
		return evidence{claims: &[]deadletter.Location{l}}
	}

	s := last(located(outboxadmin.Location{State: "pending", Held: true, Relay: "r"}), "outbox")
	assert.Equal(t, "pending", s.State)
	assert.Contains(t, s.Why, "the broker is down or refuses it", "an hour is too long")
	assert.Contains(t, s.Next, "millrace doctor")
	assert.Equal(t, "retrying", last(located(outboxadmin.Location{State: "retrying"}), "outbox").State, "without a time, which somebody has taken away")
	s = last(located(outboxadmin.Location{State: "blocked", At: &now}), "outbox")
	assert.Equal(t, "blocked", s.State)
	assert.NotContains(t, s.Why, "event  of")

	holder := &deadletter.Holder{PID: 7, Since: ago(time.Hour)}
	s = last(claimed(deadletter.Location{Holder: holder}), "claim")
	assert.Equal(t, "in flight", s.State)
	assert.Equal(t, []string{`psql -c 'select pg_terminate_backend(7)'`}, s.Next)
	s = last(claimed(deadletter.Location{Holder: holder, Claimed: &now}), "claim")
	assert.Equal(t, "completed", s.State, "what is in flight is a duplicate")
	assert.Contains(t, s.Why, "Session 7 is ignoring one now.")

	audit := func(action string) deadletter.Audit {
		return deadletter.Audit{Action: action, Actor: "ada", At: now, Detail: []byte(`{"note":"why"}`)}
	}
	s = last(claimed(deadletter.Location{Claimed: &now, Audit: []deadletter.Audit{audit("edit"), audit("replay"), audit("discard")}}), "claim")
	assert.Equal(t, "completed", s.State, "the last decision counts")
	assert.Contains(t, s.Why, "It was replayed by ada, just now (")
	discarded := claimed(deadletter.Location{Claimed: &now, Audit: []deadletter.Audit{audit("purge")}})
	assert.Equal(t, "discarded", last(discarded, "claim").State)
	assert.Equal(t, "none", last(discarded, "output").State)
	redirected := claimed(deadletter.Location{Claimed: &now, Audit: []deadletter.Audit{{Action: "redirect", Actor: "ada", At: now, Detail: []byte(`{"to":"billing/notify"}`)}}})
	s = last(redirected, "claim")
	assert.Equal(t, "redirected", s.State)
	assert.Contains(t, s.Why, "it was redirected to billing/notify by ada, just now")
	assert.Equal(t, "none", last(redirected, "output").State)

	// The record of an event that failed at first is of its failure: it tells neither when the event was handled, nor when it came.
	s = last(claimed(deadletter.Location{Claimed: &now, Kept: true}), "claim")
	assert.Equal(t, "completed", s.State)
	assert.Contains(t, s.Why, "When it was handled is not recorded.")
	assert.Nil(t, s.At)
	assert.Nil(t, s.End)
	s = last(claimed(deadletter.Location{Claimed: ago(time.Hour), Kept: true, Audit: []deadletter.Audit{audit("discard")}}), "claim")
	assert.Equal(t, now, *s.At, "a person has discarded it then")
	failed := &deadletter.Event{State: "dead", First: *ago(time.Minute)}
	assert.Nil(t, last(claimed(deadletter.Location{Claimed: ago(time.Minute), Kept: true}), "broker").End)
	assert.Nil(t, last(claimed(deadletter.Location{Claimed: ago(time.Minute), Kept: true, Failed: failed}), "broker").End)
	both := claimed(deadletter.Location{Failed: failed})
	*both.claims = append(*both.claims, deadletter.Location{Consumer: "bill", Claimed: ago(time.Second)})
	assert.Nil(t, last(both, "broker").End, "another consumer had it before")
	(*both.claims)[1].Claimed = ago(time.Hour)
	assert.Equal(t, ago(time.Hour).Unix(), last(both, "broker").End.Unix())

	unread := evidence{outbox: &[]outboxadmin.Location{}, unread: true}
	s = last(unread, "event")
	assert.Contains(t, s.Why, "but not the outbox itself, which is too large to be searched here")
	assert.Equal(t, []string{"millrace explain e1"}, s.Next)
	unread.effects = &[]effect.Entry{{Key: "labour/mail:e1", State: "done"}}
	assert.Equal(t, "not known", last(unread, "outbox").State)
	endless := claimed(deadletter.Location{Claimed: &now})
	endless.endless = true
	assert.Equal(t, "not known", last(endless, "output").State)
}

// An event that was passed on under its own ID is an output; where its record is forgotten it is all there is.
func TestSortsWhatWasFound(t *testing.T) {
	t.Parallel()
	e := &evidence{eventID: "e1"}
	e.sort([]outboxadmin.Location{
		{Topic: "own"},
		{Topic: "passed", Metadata: map[string]string{outbox.CauseMetadata: "e1"}},
		{Topic: "dead", Metadata: map[string]string{claim.DeadConsumerMetadata: "notify"}},
	})
	assert.Equal(t, "own", e.topic())
	assert.Len(t, *e.outbox, 1)
	assert.Equal(t, "passed dead", e.passedOn[0].Topic+" "+e.copies[0].Topic)
}
