package kafkaview

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestView(t *testing.T) {
	view := func(leader int32, isr []int32, brokers ...int32) View {
		return View{brokers: brokers, topics: []kmsg.MetadataResponseTopic{{
			Topic: kmsg.StringPtr("t"),
			Partitions: []kmsg.MetadataResponseTopicPartition{
				{Partition: 4, Leader: leader, Replicas: []int32{1, 2, 3}, ISR: isr},
			},
		}}}
	}
	all := []int32{1, 2, 3}
	for name, test := range map[string]struct {
		view            View
		inSync, without string // errors; without broker 2
	}{
		"empty":            {View{brokers: all}, "", "thought to be at work"},
		"well":             {view(1, all, 1, 2, 3), "", "thought to be at work"},
		"just killed":      {view(2, all, 1, 3), "2 brokers of 3", "partition 4 of t: in sync are [1 2 3], the leader is 2"},
		"still in sync":    {view(1, all, 1, 3), "2 brokers of 3", "in sync are [1 2 3]"},
		"left out":         {view(1, []int32{1, 3}, 1, 3), "2 brokers of 3", ""},
		"back, behind":     {view(1, []int32{1, 3}, 1, 2, 3), "partition 4 of t: in sync are [1 3] of [1 2 3]", "at work"},
		"without a leader": {view(-1, all, 1, 2, 3), "the leader is -1", "at work"},
	} {
		t.Run(name, func(t *testing.T) {
			for want, err := range map[*string]error{&test.inSync: test.view.InSync(3), &test.without: test.view.Without(2)} {
				if *want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, *want)
				}
			}
		})
	}
}
