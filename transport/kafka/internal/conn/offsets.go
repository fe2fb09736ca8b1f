package conn

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"
)

// ErrActive is returned for a group that has members: only they may commit its offsets.
var ErrActive = errors.New("the group has members")

// CommitEnds commits the end of each partition for which the group has no offset, or returns ErrActive.
func CommitEnds(client sarama.Client, group, topic string) error {
	ends, err := NewEnds(client, group, topic)
	if err != nil || len(ends) == 0 {
		return err
	}
	return SetOffsets(client, group, topic, ends)
}

// SetOffsets commits offsets for a group without members, or returns ErrActive.
func SetOffsets(client sarama.Client, group, topic string, offsets map[int32]int64) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	blocks := map[int32]sarama.OffsetAndMetadata{}
	for partition, offset := range offsets {
		blocks[partition] = sarama.OffsetAndMetadata{Offset: offset, LeaderEpoch: -1}
	}
	answer, err := admin.AlterConsumerGroupOffsets(group, map[string]map[int32]sarama.OffsetAndMetadata{topic: blocks}, nil)
	if err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", group, err)
	}
	for _, code := range answer.Errors[topic] {
		switch {
		case errors.Is(code, sarama.ErrUnknownMemberId):
			return ErrActive
		case code != sarama.ErrNoError:
			return fmt.Errorf("set the offsets of group %s: %w", group, code)
		}
	}
	return nil
}

// Members returns the members of the group, as client IDs and hosts.
func Members(client sarama.Client, group string) ([]string, error) {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, err
	}
	groups, err := admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return nil, fmt.Errorf("look up the members of group %s: %w", group, err)
	}
	var members []string
	for _, g := range groups {
		if !errors.Is(g.Err, sarama.ErrNoError) && !errors.Is(g.Err, sarama.ErrGroupIDNotFound) {
			return nil, fmt.Errorf("look up the members of group %s: %w", group, g.Err)
		}
		for _, m := range g.Members {
			members = append(members, m.ClientId+" at "+strings.TrimPrefix(m.ClientHost, "/"))
		}
	}
	slices.Sort(members)
	return members, nil
}

// GroupOffsets returns the group's committed offsets, without the partitions that have none.
func GroupOffsets(client sarama.Client, group, topic string, partitions []int32) (map[int32]int64, error) {
	positions, err := groupPositions(client, group, map[string][]int32{topic: partitions})
	committed := make(map[int32]int64, len(partitions))
	for partition, at := range positions[topic] {
		committed[partition] = at.Offset
	}
	return committed, err
}

// GroupNotes returns the metadata of the group's offsets, by topic and partition.
func GroupNotes(client sarama.Client, group string, partitions map[string][]int32) (map[string]map[int32]string, error) {
	positions, err := groupPositions(client, group, partitions)
	notes := make(map[string]map[int32]string, len(positions))
	for topic, committed := range positions {
		notes[topic] = make(map[int32]string, len(committed))
		for partition, at := range committed {
			notes[topic][partition] = at.Note
		}
	}
	return notes, err
}

func groupPositions(client sarama.Client, group string, partitions map[string][]int32) (map[string]map[int32]Position, error) {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, err
	}
	answer, err := admin.ListConsumerGroupOffsets(group, partitions)
	if errors.Is(err, sarama.ErrGroupIDNotFound) {
		return nil, nil
	}
	committed := map[string]map[int32]Position{}
	for topic, numbers := range partitions {
		committed[topic] = map[int32]Position{}
		for _, partition := range numbers {
			if err != nil {
				break
			}
			switch block := answer.GetBlock(topic, partition); {
			case block == nil:
				err = sarama.ErrIncompleteResponse
			case block.Err != sarama.ErrNoError:
				err = block.Err
			case block.Offset >= 0:
				committed[topic][partition] = Position{Offset: block.Offset, Note: block.Metadata}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up the offsets of group %s: %w", group, err)
	}
	return committed, nil
}

// NewEnds returns the ends of the partitions for which the group has no offset. Records of an open transaction are published when it
// ends, so the ends are before them.
func NewEnds(client sarama.Client, group, topic string) (map[int32]int64, error) {
	partitions, err := client.Partitions(topic)
	if err != nil {
		return nil, err
	}
	committed, err := GroupOffsets(client, group, topic, partitions)
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for _, partition := range partitions {
		if _, known := committed[partition]; known {
			continue
		}
		if ends[partition], err = StableEnd(client, topic, partition); err != nil {
			return nil, fmt.Errorf("look up the end of partition %d: %w", partition, err)
		}
	}
	return ends, nil
}

// Position is a group's position in a partition.
type Position struct {
	Offset int64  // of the next message
	Note   string // the offset's metadata
}

// Member identifies the member that commits offsets.
type Member struct {
	ID         string
	Generation int32
	Instance   *string // set for a static member
}

// CommitOffsets commits offsets of the topic on behalf of a member.
func CommitOffsets(client sarama.Client, group, topic string, by Member, offsets map[int32]int64) error {
	request := sarama.NewOffsetCommitRequest(client.Config(), group)
	request.ConsumerID, request.ConsumerGroupGeneration, request.GroupInstanceId = by.ID, by.Generation, by.Instance
	for partition, offset := range offsets {
		request.AddBlockWithLeaderEpoch(topic, partition, offset, -1, sarama.ReceiveTime, "")
	}
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return err
	}
	answer, err := coordinator.CommitOffset(request)
	if err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", group, err)
	}
	for _, code := range answer.Errors[topic] {
		if code != sarama.ErrNoError {
			return fmt.Errorf("set the offsets of group %s: %w", group, code)
		}
	}
	return nil
}
