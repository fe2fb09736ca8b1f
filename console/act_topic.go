package console

import (
	"net/url"

	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

var topicFields = []string{"topic"}

// planTopic finds the topic, and how many of its events wait.
func (q *request) planTopic(f url.Values) (p plan, t outboxadmin.TopicReport, err error) {
	s := q.snapshot()
	topic := f.Get("topic")
	if s.Outbox == nil || topic == "" || !filter.Usable(topic) {
		return p, t, errNotFound
	}
	p.Back = "/outbox"
	return p, s.Outbox.Topic(topic), nil
}

func planPause(q *request, f url.Values) (plan, error) {
	p, t, err := q.planTopic(f)
	p.Question, p.Verb = "Pause topic "+t.Topic+"?", "Pause the topic"
	p.Explain = "Relays publish no more of its events until somebody resumes it. The events stay in the outbox and keep their order; " + format.Waiting(t.Pending)
	p.Command = q.db.Reach.Command(t.Topic, "outbox", "topic", "pause")
	if t.State == outboxadmin.TopicPaused {
		p.Nothing = "It is paused already."
	}
	return p, err
}

func planResume(q *request, f url.Values) (plan, error) {
	p, t, err := q.planTopic(f)
	p.Question, p.Verb = "Resume topic "+t.Topic+"?", "Resume the topic"
	p.Explain = "Relays publish its events again, in order; " + format.Waiting(t.Pending)
	p.Command = q.db.Reach.Command(t.Topic, "outbox", "topic", "resume")
	if t.State != outboxadmin.TopicPaused {
		p.Nothing = "It is not paused."
	} else if t.Since != nil {
		p.Seen, p.Changed = t.Since.String(), "Somebody has paused the topic again meanwhile."
	}
	return p, err
}
