package figures

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Topics are those that wait and those that flow, and what relays count together is none.
func TestTopics(t *testing.T) {
	t.Parallel()
	sent := func(topic string, n int64) outboxadmin.Flow {
		return outboxadmin.Flow{Topic: topic, Minutes: []outboxadmin.FlowMinute{{At: now.Truncate(time.Minute), Published: n, Failed: 1000}}}
	}
	all, others := topics(&outboxadmin.Report{Topics: []outboxadmin.TopicReport{
		{Topic: "waits", Pending: outboxadmin.Count{N: 7}},
		{Topic: "paused", TopicState: outboxadmin.TopicState{State: outboxadmin.TopicPaused}},
		{Topic: "failed", Failed: outboxadmin.Count{N: 1}},
		{Topic: "failing", Pending: outboxadmin.Count{N: 1}, TopicState: outboxadmin.TopicState{State: outboxadmin.TopicFailing}},
	}}, outboxadmin.Flows{Now: now, Topics: []outboxadmin.Flow{sent("", 27), sent("slow", 1), sent("busy", 270), sent("waits", 0)}})
	var got [][2]string
	for _, topic := range all {
		got = append(got, [2]string{topic.Topic, topic.Rate()})
	}
	assert.Equal(t, [][2]string{{"failing", "–"}, {"paused", "–"}, {"failed", "–"}, {"waits", "0"}, {"busy", "1.0/s"}, {"slow", "0.2/min"}}, got)
	assert.Equal(t, "6.0/min", others.Rate())
}
