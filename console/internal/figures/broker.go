package figures

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Broker is what a broker says.
type Broker struct {
	Name, Address string
	At            time.Time // when it was asked; zero: it has not answered yet
	Error         string    // why it does not answer; "": it does
	Topics        []BrokerTopic
	Lag           outboxadmin.Count // of all topics
}

// BrokerTopic is a topic at a broker, with the consumers that were asked about.
type BrokerTopic struct {
	Topic   string
	Missing bool              // the broker has no such topic
	Unread  outboxadmin.Count // messages that consumers have not acked: of the consumer with the most
	Behind  string            // that consumer; "" if none was asked about
	Without []string          // consumers without a subscription
	Error   string            // why it could not be asked about

	silent bool // what a consumer has not read is not told
}

// Answered is the answer of a broker: topics with trouble first, then those with the most unread messages.
func Answered(a doctor.BrokerAnswer) Broker {
	b := Broker{}
	if a.Err != nil {
		b.Error = a.Err.Error()
	}
	at := map[string]int{}
	for _, t := range a.Topics {
		i, known := at[t.Of.Topic]
		if !known {
			i = len(b.Topics)
			at[t.Of.Topic] = i
			b.Topics = append(b.Topics, BrokerTopic{Topic: t.Of.Topic, Unread: outboxadmin.Count{AtLeast: true}})
		}
		of := &b.Topics[i]
		switch {
		case t.Err != nil:
			of.Error = t.Err.Error()
		case !t.Found.Topic:
			of.Missing = true
		case t.Of.Consumer == "":
		case !t.Found.Consumer:
			of.Without = append(of.Without, t.Of.Consumer)
		case t.Found.Lag < 0:
			of.silent = true
		case t.Found.Lag >= of.Unread.N || of.Behind == "":
			of.Unread, of.Behind = outboxadmin.Count{N: t.Found.Lag}, t.Of.Consumer
		}
	}
	b.Lag.AtLeast = !slices.ContainsFunc(b.Topics, func(t BrokerTopic) bool { return t.Behind != "" })
	for _, t := range b.Topics {
		b.Lag = outboxadmin.Count{N: b.Lag.N + t.Unread.N, AtLeast: b.Lag.AtLeast || t.Error != "" || t.silent}
	}
	slices.SortStableFunc(b.Topics, func(x, y BrokerTopic) int {
		return cmp.Or(cmp.Compare(y.trouble(), x.trouble()), cmp.Compare(y.Unread.N, x.Unread.N), strings.Compare(x.Topic, y.Topic))
	})
	return b
}

func (t BrokerTopic) trouble() int {
	switch {
	case t.Missing, t.Error != "":
		return 2
	case len(t.Without) > 0:
		return 1
	}
	return 0
}

// Wrong reports whether the topic has trouble.
func (t BrokerTopic) Wrong() bool { return t.trouble() > 0 }

// With is the verdict on a database without trouble of its own, together with its brokers.
func (v Verdict) With(brokers []Broker) Verdict {
	if v.State != "done" {
		return v
	}
	wrong := 0
	for _, b := range brokers {
		if b.Error != "" {
			return Verdict{State: "retrying", Text: "The broker does not answer.", More: "Events wait until it does, and none is lost."}
		}
		for _, t := range b.Topics {
			if t.Wrong() {
				wrong++
			}
		}
	}
	if wrong == 0 {
		return v
	}
	return Verdict{State: "retrying", Text: format.Plural(wrong, "topic at the broker has trouble.", "topics at the broker have trouble."), More: "Nothing waits for a person in the database."}
}
