package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// StartAtNewest commits where a new group of the topics begins, so that everything published from now on is delivered. If instead each
// member began at the end that it finds, messages would be skipped that a member had not done when it died before the group's first
// commit. It retries for a while, because a new cluster has no coordinators at first.
func StartAtNewest(ctx context.Context, s Shared, group string, topics []string) error {
	patient, cancel := context.WithTimeout(ctx, conn.SettleTimeout)
	defer cancel()
	var ends conn.Offsets // the same for each attempt: a broker may commit those of some topics only
	commit := func() (err error) {
		if ends == nil {
			ends, err = conn.NewEnds(s.Client, group, topics)
		}
		if err == nil && len(ends) > 0 {
			err = conn.SetOffsets(s.Client, group, ends)
		}
		return err
	}
	for {
		err := s.Cluster.Within(patient, commit)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || errors.Is(err, conn.ErrActive) || sequence.Terminal(err) || errors.Is(err, sarama.ErrGroupAuthorizationFailed):
			return err
		}
		select {
		case <-s.Life.Done():
			return transport.ErrClosed
		case <-patient.Done():
			return err
		case <-time.After(conn.RetryWait):
		}
	}
}

// commitNewest is StartAtNewest for a group that has members already: Kafka accepts the commit only from a member then. The member's own
// partitions begin there.
func (s *Subscription) commitNewest(session sarama.ConsumerGroupSession) error {
	ends, err := conn.NewEnds(s.client, s.config.Consumer, s.config.Newest)
	if err != nil {
		return err
	}
	if len(ends) > 0 {
		by := conn.Member{ID: session.MemberID(), Generation: session.GenerationID()}
		if s.config.Instance != "" {
			by.Instance = &s.config.Instance
		}
		if err := conn.CommitOffsets(s.client, s.config.Consumer, by, ends); err != nil {
			return err
		}
	}
	// The session looked its offsets up before, perhaps when neither this member nor another one had committed.
	for _, topic := range s.config.Newest {
		committed, err := conn.GroupOffsets(s.client, s.config.Consumer, topic, session.Claims()[topic])
		if err != nil {
			return err
		}
		for partition, at := range committed {
			session.MarkOffset(topic, partition, at, "")
		}
	}
	return nil
}

// AwaitNewest returns once the member has committed where its group begins, if that is its task.
func (s *Subscription) AwaitNewest(ctx context.Context) error {
	if s.newest == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, conn.SettleTimeout)
	defer cancel()
	select {
	case <-s.newest:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("set the offsets of group %s: %w", s.config.Consumer, ctx.Err())
	}
}
