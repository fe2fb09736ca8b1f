package produce

import (
	"errors"
	"slices"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// recover looks up, in the background, what partitions of the topic lack: a leader or an identity.
func (p *producer) recover(topic string) {
	if p.recovering[topic] || p.life.Err() != nil {
		return
	}
	p.recovering[topic] = true
	var lacking []*sequence.Partition
	for part := range p.ready {
		if part.Topic == topic && part.Lacks() {
			lacking = append(lacking, part)
		}
	}
	// A partition that has long been without a leader must not delay the others.
	first := slices.MinFunc(lacking, func(a, b *sequence.Partition) int { return a.Retries - b.Retries })
	retries := first.Retries
	p.running.Go(func() {
		var now layout
		id, err := p.ask(topic, retries)
		if err == nil {
			now, err = p.layout(topic)
		}
		finds := make([]finding, len(lacking))
		for i, part := range lacking {
			finds[i] = p.find(part, now, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.recovering, topic)
		for i, part := range lacking {
			if finds[i].gone {
				p.move(part, now)
			} else {
				part.Found(finds[i].leader, id, finds[i].err)
			}
		}
		p.dispatch()
	})
}

// layout is the partitions of a topic, and those that have a leader.
type layout struct{ all, writable []int32 }

func (p *producer) layout(topic string) (l layout, err error) {
	if l.all, err = p.client.Partitions(topic); err == nil {
		l.writable, err = p.client.WritablePartitions(topic)
	}
	return l, err
}

// finding is what was found about a partition.
type finding struct {
	leader *sarama.Broker
	gone   bool // the topic was recreated with fewer partitions
	err    error
}

func (p *producer) find(part *sequence.Partition, now layout, err error) (f finding) {
	switch {
	case err != nil:
		f.err = err
	case !slices.Contains(now.all, part.Number):
		f.gone = true
	case !slices.Contains(now.writable, part.Number):
		f.err = sarama.ErrLeaderNotAvailable
	default:
		f.leader, f.err = p.client.Leader(part.Topic, part.Number)
	}
	return f
}

// move sends the rest of a partition that is gone to the topic's current partitions, before what is queued there.
func (p *producer) move(part *sequence.Partition, now layout) {
	items := part.Unsettled()
	delete(p.partitions[part.Topic], part.Number)
	delete(p.ready, part)
	for _, i := range slices.Backward(items) {
		var err error
		if i.Partition, err = p.place(part.Topic, i.Record, now); err != nil {
			part.Fail([]*sequence.Item{i}, err)
			continue
		}
		to := p.partition(part.Topic, i.Partition)
		to.AddFirst(i)
		if !to.InFlight {
			p.ready[to] = struct{}{}
		}
	}
}

// ask returns an identity, and makes sure that the client knows the topic's leaders. It first waits according to the number of failures
// in a row.
func (p *producer) ask(topic string, retries int) (sequence.Identity, error) {
	if retries > 0 && !backoff.Sleep(p.life, retry.Wait(retries)) || p.life.Err() != nil {
		return sequence.Nobody, transport.ErrClosed
	}
	var err error
	if retries > 0 { // first: only this makes sarama retry brokers that it could not reach
		err = p.client.RefreshMetadata(topic)
	}
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		err = p.topics.EnsureAgain(p.life, topic) // it is created again, or known to be missing
	}
	if err != nil && !errors.Is(err, sarama.ErrLeaderNotAvailable) { // of some partitions; the others work
		return sequence.Nobody, err
	}
	return p.identify()
}
