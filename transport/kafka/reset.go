package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

var _ transport.Resetter = (*Transport)(nil)

// Reset implements transport.Resetter: it commits offsets for the consumer's group, which Kafka takes only while the group has
// no members. The timeouts of the connections to the brokers bound each question; ctx is looked at between them.
func (t *Transport) Reset(ctx context.Context, r transport.Reset) (moves []transport.Move, err error) {
	if err := errors.Join(ctx.Err(), wire.CheckTopic(r.Topic), transport.ValidateConsumer(r.Consumer)); err != nil {
		return nil, err
	}
	if r.To.Snapshot != "" {
		return nil, fmt.Errorf("reset to snapshot %s: Kafka has no snapshots, want a time or an offset", r.To.Snapshot)
	}
	err = conn.Connected(ctx, func() error {
		return coordinated(ctx, func() error {
			moves, err = t.reset(r)
			return err
		})
	})
	return moves, conn.WithRemedy(err, r.Consumer, r.Topic)
}

func (t *Transport) reset(r transport.Reset) ([]transport.Move, error) {
	if err := t.client.RefreshMetadata(r.Topic); err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", r.Topic, err)
	}
	partitions, err := t.client.Partitions(r.Topic)
	if err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", r.Topic, err)
	}
	if len(r.To.Offsets) > 0 {
		all := partitions
		partitions = slices.Sorted(maps.Keys(r.To.Offsets))
		for _, p := range partitions {
			if !slices.Contains(all, p) {
				return nil, fmt.Errorf("topic %s has no partition %d: want 0 to %d", r.Topic, p, len(all)-1)
			}
		}
	}
	committed, err := conn.GroupOffsets(t.client, r.Consumer, r.Topic, partitions)
	if err != nil {
		return nil, err
	}
	offsets, moves := map[int32]int64{}, make([]transport.Move, 0, len(partitions))
	for _, p := range partitions {
		to, err := t.offset(r, p)
		if err != nil {
			return nil, err
		}
		from, known := committed[p]
		if !known {
			from = -1
		}
		offsets[p], moves = to, append(moves, transport.Move{Partition: p, From: from, To: to})
	}
	members, err := conn.Members(t.client, r.Consumer)
	switch {
	case err != nil:
		return nil, err
	case len(members) > 0:
		return moves, fmt.Errorf("%w, as members of its group (%s): stop them; one that was killed stays a member for its session timeout",
			transport.ErrConsumerRuns, strings.Join(members, ", "))
	case r.DryRun:
		return moves, nil
	}
	err = conn.SetOffsets(t.client, r.Consumer, conn.Offsets{r.Topic: offsets})
	if errors.Is(err, conn.ErrActive) {
		err = fmt.Errorf("%w: one has just joined its group; stop it", transport.ErrConsumerRuns)
	}
	return moves, err
}

// offset is where the partition is read from after the reset.
func (t *Transport) offset(r transport.Reset, partition int32) (at int64, err error) {
	switch wanted, named := r.To.Offsets[partition]; {
	case r.To.Earliest:
		at, err = t.client.GetOffset(r.Topic, partition, sarama.OffsetOldest)
	case r.To.Latest:
		at, err = conn.StableEnd(t.client, r.Topic, partition)
	case r.To.Time.After(time.Now()):
		return 0, errors.New("reset to a time that is to come: want Latest, or a time that was")
	case !r.To.Time.IsZero():
		at, err = t.client.GetOffset(r.Topic, partition, r.To.Time.Truncate(time.Millisecond).UnixMilli())
		if err == nil && at < 0 { // nothing was published since
			at, err = conn.StableEnd(t.client, r.Topic, partition)
		}
	case named:
		return wanted, t.within(r.Topic, partition, wanted)
	default:
		return 0, errors.New("reset to nowhere: want Earliest, Latest, a Time or Offsets")
	}
	if err != nil {
		return 0, fmt.Errorf("look up an offset of partition %d: %w", partition, err)
	}
	return at, nil
}

// within reports an offset that the partition does not have: a group there would begin where its consumer's StartAt says.
func (t *Transport) within(topic string, partition int32, offset int64) error {
	first, err := t.client.GetOffset(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return fmt.Errorf("look up the beginning of partition %d: %w", partition, err)
	}
	end, err := t.client.GetOffset(topic, partition, sarama.OffsetNewest)
	if err != nil {
		return fmt.Errorf("look up the end of partition %d: %w", partition, err)
	}
	if offset < first || offset > end {
		return fmt.Errorf("partition %d of topic %s has no offset %d: want %d to %d", partition, topic, offset, first, end)
	}
	return nil
}
