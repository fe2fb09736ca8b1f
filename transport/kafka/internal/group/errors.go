package group

import (
	"errors"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// The first and the longest wait between warnings of one error. The wait doubles while the error continues.
const (
	firstRepeat = 10 * time.Second
	lastRepeat  = 10 * time.Minute
	// mostWarnings bounds how many errors are tracked.
	mostWarnings = 100
)

// logErrors logs the group's errors. It returns when the group is closed.
func (s *Subscription) logErrors() {
	warned := warnings{}
	for err := range s.group.Errors() {
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			s.mu.Lock()
			s.topicGone()
			s.mu.Unlock()
		}
		s.observerOf(err).failed(s.messages)
		if unsaid, due := warned.due(causeOf(err), time.Now()); due {
			s.own.log.Warn("consuming", slog.Any("error", conn.WithRemedy(err, s.config.Consumer, s.config.Topic)), slog.Int("not_logged_before", unsaid))
		}
	}
}

// observerOf returns the observer for the topic of the error, if it names one.
func (s *Subscription) observerOf(err error) *topicObserver {
	var of *sarama.ConsumerError
	if errors.As(err, &of) && of.Topic != "" {
		return s.of(of.Topic).observer
	}
	return s.own.observer
}

// causeOf returns the cause that the partitions of a topic have in common.
func causeOf(err error) string {
	var of *sarama.ConsumerError
	if errors.As(err, &of) {
		err = of.Err
	}
	return err.Error()
}

// warnings limits how often a repeated error is logged.
type warnings map[string]*warning

type warning struct {
	next   time.Time
	wait   time.Duration
	unsaid int
}

// due reports whether to log the error now, and how often it was not logged since the last time.
func (w warnings) due(cause string, now time.Time) (unsaid int, due bool) {
	of := w[cause]
	switch {
	case of == nil || now.Sub(of.next) > lastRepeat: // it had stopped
		if len(w) >= mostWarnings {
			clear(w)
		}
		of = &warning{wait: firstRepeat}
		w[cause] = of
	case now.Before(of.next):
		of.unsaid++
		return 0, false
	default:
		of.wait = min(2*of.wait, lastRepeat)
	}
	unsaid, of.unsaid = of.unsaid, 0
	of.next = now.Add(of.wait)
	return unsaid, true
}
