package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// startAtNewest commits the end of each partition of which the group has no offset, so that all that is published from now
// on is delivered. If each member began at the end that it finds, what a member had not done when it died, before the
// group's first commit, would be skipped. It tries for a while, because a new cluster has no coordinators at first.
func (t *Transport) startAtNewest(ctx context.Context, group, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		err := commitEnds(t.client, group, topic)
		if err == nil || hopeless(err) || errors.Is(err, sarama.ErrGroupAuthorizationFailed) {
			return err
		}
		select {
		case <-t.life.Done():
			return transport.ErrClosed
		case <-ctx.Done():
			return err
		case <-time.After(retryWait):
		}
	}
}

// commitEnds is one try.
func commitEnds(client sarama.Client, group, topic string) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return err
	}
	committed, err := groupOffsets(admin, group, topic, partitions)
	if err != nil {
		return err
	}
	ends := map[int32]sarama.OffsetAndMetadata{}
	for _, partition := range partitions {
		if _, known := committed[partition]; known {
			continue
		}
		end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		if err != nil {
			return fmt.Errorf("look up the end of partition %d: %w", partition, err)
		}
		ends[partition] = sarama.OffsetAndMetadata{Offset: end, LeaderEpoch: -1}
	}
	if len(ends) == 0 {
		return nil
	}
	answer, err := admin.AlterConsumerGroupOffsets(group, map[string]map[int32]sarama.OffsetAndMetadata{topic: ends}, nil)
	if err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", group, err)
	}
	for _, code := range answer.Errors[topic] {
		if code != sarama.ErrNoError && !errors.Is(code, sarama.ErrUnknownMemberId) { // it has members: the first has done this
			return fmt.Errorf("set the offsets of group %s: %w", group, code)
		}
	}
	return nil
}

// groupOffsets returns the offsets that the group has committed, without the partitions of which it has none.
func groupOffsets(admin sarama.ClusterAdmin, group, topic string, partitions []int32) (map[int32]int64, error) {
	answer, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
	if errors.Is(err, sarama.ErrGroupIDNotFound) {
		return nil, nil
	}
	committed := map[int32]int64{}
	for _, partition := range partitions {
		if err != nil {
			break
		}
		switch block := answer.GetBlock(topic, partition); {
		case block == nil:
			err = sarama.ErrIncompleteResponse
		case block.Err != sarama.ErrNoError:
			err = block.Err
		case block.Offset >= 0:
			committed[partition] = block.Offset
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up the offsets of group %s: %w", group, err)
	}
	return committed, nil
}
