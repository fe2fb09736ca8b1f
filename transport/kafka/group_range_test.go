package kafka_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestOutOfRange: the group's offset is not in the log. That is told and counted, and from then on offsets are committed
// again: a restart repeats nothing of what was handled since.
func TestOutOfRange(t *testing.T) {
	t.Parallel()
	for reason, group := range map[string]struct{ start, offset int64 }{
		"expired":   {start: 20, offset: 12},
		"truncated": {start: 0, offset: 1000}, // as after an unclean election
	} {
		test := func(delivery kafka.Delivery, prefix string) {
			t.Run(reason+"/"+delivery.String()+"/"+prefix+"topic", func(t *testing.T) {
				t.Parallel()
				c, log, m := newCluster(t, 1), &logged{}, newMeter()
				c.subscribed = prefix + c.topic
				for i := range 30 {
					c.put(0, fmt.Sprint(i))
				}
				require.NoError(t, c.DeleteRecords(c.topic, 0, group.start))
				offsets := kadm.Offsets{}
				offsets.AddOffset(c.topic, 0, group.offset, -1)
				_, err := kadm.NewClient(c.kgo).CommitOffsets(t.Context(), "c", offsets)
				require.NoError(t, err)
				tr, messages := c.join(kafka.Config{Delivery: delivery, Logger: log.logger(), MeterProvider: m.provider})
				for i := range int64(4) {
					msg := next(t, messages)
					require.Equal(t, fmt.Sprint(group.start+i), msg.UUID)
					msg.Ack()
				}
				c.committed(0, group.start+4)
				m.eventually(t, "millrace.kafka.consumer.resets "+reason, 1)
				require.Contains(t, log.String(), fmt.Sprintf("committed=%d goes_on_at=%d", group.offset, group.start))
				require.NoError(t, tr.Close())
				_, messages = c.join(kafka.Config{Delivery: delivery})
				require.Equal(t, fmt.Sprint(group.start+4), next(t, messages).UUID, "nothing is repeated")
			})
		}
		for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
			test(delivery, "")
			test(delivery, "^")
		}
	}
}
