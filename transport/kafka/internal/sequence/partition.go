// Package sequence decides what is sent to a partition next, in which batch and with which sequence number, and what the brokers' answers
// mean. It does no I/O and has no clock.
package sequence

import (
	"fmt"
	"math"
	"slices"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// Partition is the queue of one partition and the state of its sending. It does no I/O and is guarded by the producer's mutex.
//
// At most one batch is in flight. Its sequence number tells the broker whether it already has the batch, so a batch whose answer was lost
// is sent again unchanged until its outcome is known. If it is given up before, the sequence is unknown: the partition then continues in
// a new epoch, in which the broker refuses late requests of the old one.
type Partition struct {
	Topic  string
	Number int32

	Identity Identity
	sequence int32 // of the next batch

	queue []*Item
	most  int    // records in the next batch while searching for one that the broker refuses; 0: any number
	Batch *Batch // in flight, or in doubt and to be sent again

	InFlight bool           // the batch is in flight
	Leader   *sarama.Broker // nil: must be looked up
	Retries  int            // failures in a row
	Last     error          // the last failure
}

// New returns a partition with nothing to send and without an identity.
func New(topic string, number int32) *Partition {
	return &Partition{Topic: topic, Number: number, Identity: Nobody}
}

// Add queues an item behind all others.
func (p *Partition) Add(i *Item) { p.queue = append(p.queue, i) }

// AddFirst queues an item before all others.
func (p *Partition) AddFirst(i *Item) { p.queue = slices.Insert(p.queue, 0, i) }

// Identity is a producer's identity at the broker.
type Identity struct {
	ID    int64
	Epoch int16
}

// Nobody is an identity that has not been requested yet.
var Nobody = Identity{ID: -1, Epoch: -1}

// Batch is a batch with its sequence number.
type Batch struct {
	Items []*Item
	Wire  *sarama.RecordBatch
	doubt bool // an attempt may have appended it
}

// Wants reports whether there is something to send.
func (p *Partition) Wants() bool {
	if p.Batch != nil && !slices.ContainsFunc(p.Batch.Items, (*Item).Waits) {
		p.forget() // nothing waits for it any more
	}
	p.queue = slices.DeleteFunc(p.queue, func(i *Item) bool { return i.settled })
	return p.Batch != nil || len(p.queue) > 0
}

// Lacks reports whether the partition cannot be sent to yet.
func (p *Partition) Lacks() bool { return p.Leader == nil || p.Identity == Nobody }

// Found gives the partition what it lacked, or the error why that is not available.
func (p *Partition) Found(leader *sarama.Broker, id Identity, err error) {
	if err != nil {
		p.Retries++
		p.Last = err
		if Terminal(err) {
			p.Fail(p.Unsettled(), fmt.Errorf("%w: %w", transport.ErrUnavailable, err))
		}
		return
	}
	p.Leader = leader
	if p.Identity == Nobody {
		p.Identity = id
	}
}

// Unsettled returns the items without a result, in the order of the queue.
func (p *Partition) Unsettled() []*Item {
	items := slices.Clone(p.queue)
	if p.Batch != nil {
		items = append(slices.Clone(p.Batch.Items), items...)
	}
	return slices.DeleteFunc(items, func(i *Item) bool { return i.settled })
}

// Take returns what must be sent next: the batch in doubt, otherwise a new batch of at most limit bytes, but at least one record. It must
// be called after Wants.
func (p *Partition) Take(limit int, build func([]*sarama.Record) *sarama.RecordBatch) *Batch {
	p.InFlight = true
	if p.Batch != nil {
		return p.Batch
	}
	n, size := 0, wire.BatchOverhead
	for n < len(p.queue) && (n == 0 || size+p.queue[n].Size <= limit) && (p.most == 0 || n < p.most) {
		size += p.queue[n].Size
		n++
	}
	items := slices.Clone(p.queue[:n])
	p.queue = slices.Delete(p.queue, 0, n)
	records := make([]*sarama.Record, n)
	for i, item := range items {
		records[i] = item.Record
	}
	made := build(records)
	made.ProducerID, made.ProducerEpoch, made.FirstSequence = p.Identity.ID, p.Identity.Epoch, p.sequence
	p.Batch = &Batch{Items: items, Wire: made}
	return p.Batch
}

// Landed applies the answer to the batch in flight.
func (p *Partition) Landed(a Answer) {
	p.InFlight = false
	if a.Kind == Appended {
		p.Retries, p.Last = 0, nil
		p.sequence = Advance(p.sequence, len(p.Batch.Items))
		for _, item := range p.Batch.Items {
			item.settle(nil)
		}
		p.Batch = nil
		p.most = min(2*p.most, math.MaxInt32)
		return
	}
	p.Retries++
	p.Last = a.Err
	p.Batch.doubt = p.Batch.doubt || a.Kind == Unknown
	switch a.Kind {
	case Appended, Unknown:
	case Retriable:
		if !p.Batch.doubt {
			p.putBack()
		}
	case Refused:
		p.refuse(a)
	case Unsequenced, Fenced:
		p.resequence(a)
	case Unavailable:
		p.Fail(p.Batch.Items, a.Err)
		p.forget()
	}
}

// refuse rejects only what the broker refuses: the records that it names or, if it names none, the only record of a batch. Otherwise the
// batch is halved and tried again.
func (p *Partition) refuse(a Answer) {
	items := p.Batch.Items
	p.putBack()
	guilty := make([]*Item, 0, 1)
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
	p.Fail(guilty, a.Err)
}

// resequence continues after the broker has lost the producer's sequence, or never knew it. Messages of a batch in doubt fail, because
// the sequence can no longer tell whether the broker has them.
func (p *Partition) resequence(a Answer) {
	if p.Batch.doubt {
		p.Fail(p.Batch.Items, fmt.Errorf("%w: it may have been published: %w", transport.ErrUnavailable, a.Err))
	}
	p.Batch.doubt = true // a late attempt of the old epoch is refused once the new one has begun
	p.putBack()
	if a.Kind == Fenced {
		p.Identity, p.sequence = Nobody, 0
	}
}

// putBack puts the batch back to the front of the queue, to be sent in new batches. Items that were given up meanwhile are not sent
// again, so the later ones of their keys are not sent either.
func (p *Partition) putBack() {
	abandoned := map[string]bool{}
	var held []*Item
	for _, item := range p.Batch.Items {
		if abandoned[item.Key] && item.Key != "" {
			held = append(held, item)
		}
		abandoned[item.Key] = abandoned[item.Key] || item.settled
	}
	p.Fail(held, transport.ErrNotSent)
	p.queue = slices.Insert(p.queue, 0, p.Batch.Items...)
	p.forget()
}

// forget drops the batch. If it may have been appended, the partition continues in a new epoch.
func (p *Partition) forget() {
	doubt := p.Batch.doubt
	p.Batch = nil
	if !doubt {
		return
	}
	p.sequence = 0
	if p.Identity.Epoch == math.MaxInt16 {
		p.Identity = Nobody
		return
	}
	p.Identity.Epoch++
}

// Fail gives items in the queue or in the batch their error. It holds back the later items of their keys, which must not overtake them.
func (p *Partition) Fail(items []*Item, err error) {
	failed := make(map[*Item]bool, len(items))
	for _, item := range items {
		failed[item] = true
	}
	keys := map[string]bool{}
	if p.Batch != nil {
		for _, item := range p.Batch.Items {
			keys[item.Key] = keys[item.Key] || failed[item]
		}
	}
	for _, item := range p.queue {
		if keys[item.Key] && item.Key != "" && !failed[item] {
			item.settle(transport.ErrNotSent)
		}
		keys[item.Key] = keys[item.Key] || failed[item]
	}
	for _, item := range items {
		item.settle(err)
	}
}

// Advance returns the sequence number n records later. After the largest comes 0.
func Advance(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) % (math.MaxInt32 + 1))
}
