package group

import (
	"context"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
)

// The first and the longest wait between reads beyond what is done. The wait doubles while nothing is found.
const (
	firstMarkerWait = 500 * time.Millisecond
	lastMarkerWait  = 15 * time.Second
)

// passMarkers acks offsets that hold no message, until session ends: the ends of transactions, and records of aborted transactions.
// sarama does not report them, so a group that has done everything would show a lag.
func (p *partitionConsumer) passMarkers(session context.Context, claim sarama.ConsumerGroupClaim) {
	wait, before := firstMarkerWait, int64(0)
	for backoff.Sleep(session, wait) {
		from, idle := p.idle()
		if !idle || from >= claim.HighWaterMarkOffset() {
			wait = firstMarkerWait
			continue
		}
		if from != before { // it has just become idle, and the next message may be on its way
			wait, before = firstMarkerWait, from
			continue
		}
		var found conn.Unread
		err := p.shared.Cluster.Within(session, func() (err error) { // a rebalance does not wait for the answer
			found, err = conn.LookAhead(p.shared.Client, p.topic, p.number, from)
			return err
		})
		if err != nil || found.First <= from {
			wait = min(2*wait, lastMarkerWait)
			continue
		}
		p.pass(from, found.First)
	}
}

// idle reports whether every record that was read is done, and the next offset.
func (p *partitionConsumer) idle() (next int64, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = p.next.Load()
	return next, p.lane.Empty() && next >= 0
}

// pass marks the offsets in between as done.
func (p *partitionConsumer) pass(from, to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Load() == from && p.lane.Empty() {
		p.release([]*lane.Entry{{Offset: to - 1}})
	}
}
