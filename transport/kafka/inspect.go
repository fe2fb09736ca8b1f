package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

const (
	retentionMs = "retention.ms"
	// inspectAttempts, conn.RetryWait apart, are for a coordinator that has just become one.
	inspectAttempts = 10
)

// Inspect implements transport.Inspector. The topic may be a pattern, as Subscribe takes it. The lag of a consumer without an offset counts from the beginning of the topic. The
// timeouts of the connections to the brokers bound each question; ctx is looked at between them.
func (t *Transport) Inspect(ctx context.Context, topic, consumer string) (i transport.Inspection, err error) {
	i.Lag = -1
	if transport.IsPattern(topic) {
		return t.inspectPattern(ctx, topic, consumer)
	}
	if err := errors.Join(ctx.Err(), wire.CheckTopic(topic)); err != nil {
		return i, err
	}
	err = conn.Connected(ctx, func() error {
		i, err = t.inspect(ctx, topic, consumer)
		return err
	})
	return i, err
}

// Address returns the addresses of the brokers, as configured.
func (c Config) Address() string { return strings.Join(c.Brokers, ", ") }

// Address implements transport.Addressed.
func (t *Transport) Address() string { return t.config.Address() }

// inspectPattern is Inspect of all topics that a pattern matches: the sum of their lags and the shortest of their retentions.
func (t *Transport) inspectPattern(ctx context.Context, pattern, consumer string) (all transport.Inspection, err error) {
	all.Lag = -1
	p, err := t.config.pattern(pattern)
	if err != nil {
		return all, err
	}
	topics, err := t.matching(ctx, p)
	for _, topic := range topics {
		i, failure := t.Inspect(ctx, topic, consumer)
		if failure != nil {
			return transport.Inspection{Lag: -1}, failure
		}
		if i.Lag >= 0 {
			all.Lag = max(all.Lag, 0) + i.Lag
		}
		if i.Retention != 0 && (all.Retention <= 0 || i.Retention > 0 && i.Retention < all.Retention) {
			all.Retention = i.Retention
		}
		all.Topic, all.Consumer = all.Topic || i.Topic, all.Consumer || i.Consumer
	}
	return all, err
}

func (t *Transport) inspect(ctx context.Context, topic, consumer string) (i transport.Inspection, err error) {
	i.Lag = -1
	switch err := t.client.RefreshMetadata(topic); {
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return i, nil
	case err != nil && !errors.Is(err, sarama.ErrLeaderNotAvailable): // some partitions are out of reach
		return i, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	i.Topic = true
	if i.Retention, err = retention(t.client, topic); err != nil || consumer == "" {
		return i, err
	}
	lag, known, err := t.lag(ctx, topic, consumer)
	if err == nil {
		i.Lag, i.Consumer = lag, known
	}
	return i, err
}

// lag is how many messages the group has not acked, and whether it has an offset at all. The ends of transactions and aborted
// messages are told from messages in the first MiB of each partition.
func (t *Transport) lag(ctx context.Context, topic, consumer string) (lag int64, known bool, err error) {
	partitions, err := t.client.Partitions(topic)
	if err != nil {
		return 0, false, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	var committed map[int32]int64
	err = coordinated(ctx, func() error {
		committed, err = conn.GroupOffsets(t.client, consumer, topic, partitions)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for _, p := range partitions {
		end, err := t.client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			return 0, false, fmt.Errorf("look up the end of partition %d: %w", p, err)
		}
		at, committed := committed[p]
		if committed {
			known = true
		} else if at, err = t.client.GetOffset(topic, p, sarama.OffsetOldest); err != nil {
			return 0, false, fmt.Errorf("look up the beginning of partition %d: %w", p, err)
		}
		if end <= at {
			continue
		}
		ahead, err := conn.LookAhead(t.client, topic, p, at)
		if err != nil {
			ahead = conn.Unread{Next: at} // all offsets are taken for messages
		}
		lag += ahead.Messages + max(end-ahead.Next, 0)
	}
	return lag, known, ctx.Err()
}

// coordinated calls ask again while the group's coordinator is about to become one.
func coordinated(ctx context.Context, ask func() error) error {
	err := ask()
	for attempt := 1; comingUp(err) && attempt < inspectAttempts; attempt++ {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(conn.RetryWait):
		}
		err = ask()
	}
	return err
}

// comingUp reports whether the group's coordinator will answer in a moment.
func comingUp(err error) bool {
	return errors.Is(err, sarama.ErrOffsetsLoadInProgress) || errors.Is(err, sarama.ErrNotCoordinatorForConsumer) || errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable)
}

// retention is for how long the topic keeps messages: 0 when the brokers do not tell, -1 for ever.
func retention(client sarama.Client, topic string) (time.Duration, error) {
	value, known, _, err := conn.TopicSetting(client, topic, retentionMs)
	if err != nil {
		return 0, fmt.Errorf("ask for %s of topic %s: %w", retentionMs, topic, err)
	}
	if !known {
		return 0, nil
	}
	ms, err := strconv.ParseInt(value, 10, 64)
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1, err
	}
	return time.Duration(ms) * time.Millisecond, err
}
