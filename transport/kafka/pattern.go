package kafka

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/group"
)

// pattern returns the topics that Subscribe is to consume. It leaves out what the service itself writes there: dead letters,
// of which those of a pattern that matches them would come again and again, and notes.
func (c Config) pattern(topic string) (*group.Pattern, error) {
	compiled, err := regexp.Compile(topic)
	if err != nil {
		return nil, fmt.Errorf("topic %q begins with ^ and is no regular expression: %w; want one of Go's syntax (https://pkg.go.dev/regexp/syntax), or the name of a topic", topic, err)
	}
	own := map[string]bool{c.Consumer.DeadLetter.Topic: true}
	for _, consumer := range c.Consumers {
		own[consumer.DeadLetter.Topic] = true
	}
	return &group.Pattern{Regexp: compiled, Without: func(name string) bool {
		return own[name] || transport.IsDeadLetterTopic(name) || strings.HasPrefix(name, progressTopic)
	}}, nil
}

// matching returns the topics that the pattern matches now.
func (t *Transport) matching(ctx context.Context, p *group.Pattern) (topics []string, err error) {
	err = conn.Connected(ctx, func() error {
		topics, err = p.Topics(t.client)
		return err
	})
	return topics, err
}
