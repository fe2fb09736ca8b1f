package kafka

import (
	"fmt"
	"math"
	"slices"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// partition is what is to be sent to one partition, and how far that is. It does no I/O and is guarded by the producer's
// mutex.
//
// At most one batch is under way. Its sequence tells the broker whether it has it already, so a batch whose answer was
// lost is sent again as it was, until its fate is known. One that is given up before leaves the sequence unknown: then the
// partition goes on in a new epoch, in which the broker refuses whatever of the old one still comes.
type partition struct {
	topic  string
	number int32

	producer identity
	sequence int32 // of the next batch

	queue []*item
	most  int    // records in the next batch while looking for one that the broker refuses; 0 is any number
	batch *batch // under way, or in doubt and to be sent again

	flying  bool           // the batch is under way
	leader  *sarama.Broker // nil: to be looked up
	retries int            // failures in a row
	last    error          // what the latest failure was
}

// identity is how the broker knows a producer.
type identity struct {
	id    int64
	epoch int16
}

// nobody is an identity that has yet to be asked for.
var nobody = identity{id: -1, epoch: -1}

// batch is a batch that has its sequence.
type batch struct {
	items []*item
	wire  *sarama.RecordBatch
	doubt bool // an attempt of it may have been appended
}

// wants reports whether there is something to send.
func (p *partition) wants() bool {
	if p.batch != nil && !slices.ContainsFunc(p.batch.items, (*item).waits) {
		p.forget() // nobody waits for it any more
	}
	p.queue = slices.DeleteFunc(p.queue, func(i *item) bool { return i.settled })
	return p.batch != nil || len(p.queue) > 0
}

// lacks reports whether it cannot be sent yet.
func (p *partition) lacks() bool { return p.leader == nil || p.producer == nobody }

// found gives the partition what it lacked, or tells why that is not to be had.
func (p *partition) found(leader *sarama.Broker, id identity, err error) {
	if err != nil {
		p.retries++
		p.last = err
		if hopeless(err) {
			p.fail(p.unsettled(), fmt.Errorf("%w: %w", transport.ErrUnavailable, err))
		}
		return
	}
	p.leader = leader
	if p.producer == nobody {
		p.producer = id
	}
}

// unsettled returns what has no result yet, in the order of the queue.
func (p *partition) unsettled() []*item {
	items := slices.Clone(p.queue)
	if p.batch != nil {
		items = append(slices.Clone(p.batch.items), items...)
	}
	return slices.DeleteFunc(items, func(i *item) bool { return i.settled })
}

// take returns what is to be sent next: the batch in doubt, else one of at most limit bytes, but at least one record. Only
// after wants.
func (p *partition) take(limit int, build func([]*sarama.Record) *sarama.RecordBatch) *batch {
	p.flying = true
	if p.batch != nil {
		return p.batch
	}
	n, size := 0, batchOverhead
	for n < len(p.queue) && (n == 0 || size+p.queue[n].size <= limit) && (p.most == 0 || n < p.most) {
		size += p.queue[n].size
		n++
	}
	items := slices.Clone(p.queue[:n])
	p.queue = slices.Delete(p.queue, 0, n)
	records := make([]*sarama.Record, n)
	for i, item := range items {
		records[i] = item.record
	}
	wire := build(records)
	wire.ProducerID, wire.ProducerEpoch, wire.FirstSequence = p.producer.id, p.producer.epoch, p.sequence
	p.batch = &batch{items: items, wire: wire}
	return p.batch
}

// landed applies the answer to the batch under way.
func (p *partition) landed(a answer) {
	p.flying = false
	if a.kind == appended {
		p.retries, p.last = 0, nil
		p.sequence = advance(p.sequence, len(p.batch.items))
		for _, item := range p.batch.items {
			item.settle(nil)
		}
		p.batch = nil
		p.most = min(2*p.most, math.MaxInt32)
		return
	}
	p.retries++
	p.last = a.err
	p.batch.doubt = p.batch.doubt || a.kind == unknown
	switch a.kind {
	case appended, unknown:
	case retriable:
		if !p.batch.doubt {
			p.putBack()
		}
	case refused:
		p.refuse(a)
	case unsequenced, fenced:
		p.resequence(a)
	case unavailable:
		p.fail(p.batch.items, a.err)
		p.forget()
	}
}

// refuse rejects what the broker will not have, and no more: the records that it names, or, where it names none, the only
// one of a batch. Else halves are tried.
func (p *partition) refuse(a answer) {
	items := p.batch.items
	p.putBack()
	guilty := make([]*item, 0, 1)
	for _, i := range a.records {
		if int(i) < len(items) {
			guilty = append(guilty, items[i])
		}
	}
	if len(guilty) == 0 && len(items) == 1 {
		guilty = items
	}
	if len(guilty) == 0 {
		p.most = len(items) / 2
		return
	}
	p.fail(guilty, a.err)
}

// resequence goes on after the broker has lost count of the producer, or never knew it. What was in doubt stays so: the
// sequence can no longer tell whether the broker has it.
func (p *partition) resequence(a answer) {
	if p.batch.doubt {
		p.fail(p.batch.items, fmt.Errorf("%w: it may have been published: %w", transport.ErrUnavailable, a.err))
	}
	p.batch.doubt = true // a late attempt of the old epoch is refused once the new one has begun
	p.putBack()
	if a.kind == fenced {
		p.producer, p.sequence = nobody, 0
	}
}

// putBack puts the batch back in front of the queue, to be sent in whatever batches. What was given up meanwhile is not
// sent again, so what follows it of its key is not either.
func (p *partition) putBack() {
	abandoned := map[string]bool{}
	var held []*item
	for _, item := range p.batch.items {
		if abandoned[item.key] && item.key != "" {
			held = append(held, item)
		}
		abandoned[item.key] = abandoned[item.key] || item.settled
	}
	p.fail(held, transport.ErrNotSent)
	p.queue = slices.Insert(p.queue, 0, p.batch.items...)
	p.forget()
}

// forget lets the batch go. When it may have been appended the partition goes on in a new epoch.
func (p *partition) forget() {
	doubt := p.batch.doubt
	p.batch = nil
	if !doubt {
		return
	}
	p.sequence = 0
	if p.producer.epoch == math.MaxInt16 {
		p.producer = nobody
		return
	}
	p.producer.epoch++
}

// fail gives items, which are in the queue or in the batch, their error, and holds back what is queued behind them of their
// keys: it must not overtake them.
func (p *partition) fail(items []*item, err error) {
	failed := make(map[*item]bool, len(items))
	for _, item := range items {
		failed[item] = true
	}
	keys := map[string]bool{}
	if p.batch != nil {
		for _, item := range p.batch.items {
			keys[item.key] = keys[item.key] || failed[item]
		}
	}
	for _, item := range p.queue {
		if keys[item.key] && item.key != "" && !failed[item] {
			item.settle(transport.ErrNotSent)
		}
		keys[item.key] = keys[item.key] || failed[item]
	}
	for _, item := range items {
		item.settle(err)
	}
}

// advance is the sequence n records later. After the largest comes 0.
func advance(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) % (math.MaxInt32 + 1))
}
