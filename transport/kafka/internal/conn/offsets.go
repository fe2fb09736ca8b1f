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

// Offsets are offsets of partitions, by topic.
type Offsets map[string]map[int32]int64

// SetOffsets commits offsets for a group without members, or returns ErrActive.
func SetOffsets(client sarama.Client, group string, offsets Offsets) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	blocks := map[string]map[int32]sarama.OffsetAndMetadata{}
	for topic, of := range offsets {
		blocks[topic] = map[int32]sarama.OffsetAndMetadata{}
		for partition, offset := range of {
			blocks[topic][partition] = sarama.OffsetAndMetadata{Offset: offset, LeaderEpoch: -1}
		}
	}
	answer, err := admin.AlterConsumerGroupOffsets(group, blocks, nil)
	if err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", group, err)
	}
	err = refusal(group, answer)
	if errors.Is(err, sarama.ErrUnknownMemberId) {
		return ErrActive
	}
	return err
}

// refusal is the first error of an answer.
func refusal(group string, answer *sarama.OffsetCommitResponse) error {
	for _, codes := range answer.Errors {
		for _, code := range codes {
			if code != sarama.ErrNoError {
				return fmt.Errorf("set the offsets of group %s: %w", group, code)
			}
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

// GroupNote returns the metadata of the group's offset in the partition.
func GroupNote(client sarama.Client, group, topic string, partition int32) (string, error) {
	positions, err := groupPositions(client, group, map[string][]int32{topic: {partition}})
	return positions[topic][partition].Note, err
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

// NewEnds returns where a new group of these topics begins: the ends of all partitions. Records of an open transaction are published when
// it ends, so the ends are before them. It returns nothing if the group has an offset in one of the topics. Then it is not new, and a
// partition without an offset was added since: it is read from its beginning.
func NewEnds(client sarama.Client, group string, topics []string) (Offsets, error) {
	if len(topics) == 0 { // no topic matches a pattern yet
		return nil, nil
	}
	partitions := map[string][]int32{}
	for _, topic := range topics {
		var err error
		if partitions[topic], err = client.Partitions(topic); err != nil {
			return nil, fmt.Errorf("look up topic %s: %w", topic, err)
		}
	}
	isNew := func() (bool, error) {
		committed, err := groupPositions(client, group, partitions)
		for _, known := range committed {
			if len(known) > 0 {
				return false, nil
			}
		}
		return err == nil, err
	}
	if yes, err := isNew(); !yes {
		return nil, err
	}
	ends := Offsets{}
	for topic, numbers := range partitions {
		ends[topic] = map[int32]int64{}
		for _, partition := range numbers {
			var err error
			if ends[topic][partition], err = StableEnd(client, topic, partition); err != nil {
				return nil, fmt.Errorf("look up the end of %s, partition %d: %w", topic, partition, err)
			}
		}
	}
	// Another process may have begun the group meanwhile, so that messages were published for it before these ends.
	if yes, err := isNew(); !yes {
		return nil, err
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

// CommitOffsets commits offsets on behalf of a member.
func CommitOffsets(client sarama.Client, group string, by Member, offsets Offsets) error {
	request := sarama.NewOffsetCommitRequest(client.Config(), group)
	request.ConsumerID, request.ConsumerGroupGeneration, request.GroupInstanceId = by.ID, by.Generation, by.Instance
	for topic, of := range offsets {
		for partition, offset := range of {
			request.AddBlockWithLeaderEpoch(topic, partition, offset, -1, sarama.ReceiveTime, "")
		}
	}
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return err
	}
	answer, err := coordinator.CommitOffset(request)
	if err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", group, err)
	}
	return refusal(group, answer)
}
