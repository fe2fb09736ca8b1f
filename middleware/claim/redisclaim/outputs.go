package redisclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// outputs are the messages to send when their handler has succeeded.
type outputs struct {
	mu     sync.Mutex
	closed bool
	staged []output
}

type output struct {
	topic string
	msgs  []*message.Message
}

// outputsKey is a store's own context key, because claims of two stores may be nested.
type outputsKey struct{ s *Store }

// Stage keeps the messages until fn has succeeded. Then they are published, at least once, before the event is marked as completed.
// With a record, Stage is the record's.
func (s *Store) Stage(ctx context.Context, topic string, msgs ...*message.Message) error {
	if s.cfg.Record != nil {
		return s.cfg.Record.Stage(ctx, topic, msgs...)
	}
	if s.cfg.Publisher == nil {
		return errors.New("redisclaim: the handler returned messages, and nothing publishes them: set Config.Publisher or Config.Record")
	}
	o, ok := ctx.Value(outputsKey{s}).(*outputs)
	if !ok {
		return errors.New("redisclaim: the context is not that of a claim of this store")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errors.New("redisclaim: the handler has returned: messages are staged while it runs")
	}
	o.staged = append(o.staged, output{topic, msgs})
	return nil
}

func (o *outputs) close() []output {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return o.staged
}

// publish sends the staged messages, unless the lock belongs to another holder, whose outputs are enough.
func (s *Store) publish(ctx context.Context, l *lock, o *outputs) error {
	staged := o.close()
	if len(staged) == 0 {
		return nil
	}
	if err := l.extend(ctx); err != nil {
		return err
	}
	for _, out := range staged {
		if err := s.cfg.Publisher.Publish(out.topic, out.msgs...); err != nil {
			return fmt.Errorf("publish outputs to %q: %w", out.topic, err)
		}
	}
	return nil
}
