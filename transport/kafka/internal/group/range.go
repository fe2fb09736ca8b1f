package group

import (
	"fmt"
	"log/slog"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// Why a group's offset is no longer in the log, as metrics name it.
const (
	resetExpired   = "expired"   // retention has removed the next record
	resetTruncated = "truncated" // the partition ends before the offset: after an unclean election, or in a recreated topic
)

// startOf returns the offset at which a claim begins. A negative offset is the oldest, for a group without one. If the group's offset is
// out of the partition's range, sarama also begins at the oldest, silently. So this is logged, counted, and committed: otherwise the
// group would commit nothing until it has passed its old offset, and each restart would begin again.
func (p *partitionConsumer) startOf(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) int64 {
	if claim.InitialOffset() >= 0 {
		return claim.InitialOffset()
	}
	committed, start, err := p.outOfRange()
	if err != nil {
		p.log.Warn("it is not known whether the group's offset was out of range", slog.Int("partition", int(p.number)), slog.Any("error", err))
	}
	if err != nil || committed < 0 {
		return claim.InitialOffset()
	}
	reason := resetTruncated
	log := p.log.With(slog.Int("partition", int(p.number)), slog.Int64("committed", committed), slog.Int64("goes_on_at", start))
	if start > committed {
		reason = resetExpired
		log.Error("the topic's retention has removed messages that the group has not handled")
	} else {
		log.Error("the partition ends before the group's offset: it is read from its beginning again, also what was handled before")
	}
	p.observer.reset(p.messages, reason)
	session.ResetOffset(p.topic, p.number, start, "")
	session.MarkOffset(p.topic, p.number, start, "")
	return start
}

// outOfRange returns the group's offset and the partition's oldest offset.
func (p *partitionConsumer) outOfRange() (committed, start int64, err error) {
	client := p.shared.Client
	err = conn.Connected(p.messages, func() error {
		if _, err := client.Partitions(p.topic); err != nil { // a client that has loaded no topic cannot ask for a group
			return fmt.Errorf("look up the partitions: %w", err)
		}
		offsets, err := conn.GroupOffsets(client, p.config.Consumer, p.topic, []int32{p.number})
		if err != nil {
			return err
		}
		var known bool
		if committed, known = offsets[p.number]; !known {
			committed = -1
			return nil
		}
		if start, err = client.GetOffset(p.topic, p.number, sarama.OffsetOldest); err != nil {
			return fmt.Errorf("look up the beginning of partition %d: %w", p.number, err)
		}
		return nil
	})
	return committed, start, err
}
