package conn

import (
	"slices"

	"github.com/IBM/sarama"
)

const (
	// unreadVersion is the last version of Fetch that identifies topics by name; Apache Kafka 4 still supports it.
	unreadVersion = 11
	// unreadBytes is how much of a partition is read.
	unreadBytes = 1 << 20
)

// StableEnd returns the last stable offset: the partition's end, or the beginning of its first open transaction.
func StableEnd(client sarama.Client, topic string, partition int32) (int64, error) {
	leader, err := client.Leader(topic, partition)
	if err != nil {
		return 0, err
	}
	request := sarama.NewOffsetRequest(client.Config().Version)
	request.IsolationLevel = sarama.ReadCommitted
	request.AddBlock(topic, partition, sarama.OffsetNewest, 1)
	response, err := leader.GetAvailableOffsets(request)
	if err != nil {
		return 0, err
	}
	block := response.GetBlock(topic, partition)
	switch {
	case block == nil:
		return 0, sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return 0, block.Err
	}
	return block.Offset, nil
}

// Unread is what follows an offset of a partition, as far as it was read.
type Unread struct {
	Messages int64 // for a read_committed reader
	Next     int64 // the offset after what was read
	First    int64 // the offset of the first message, or Next
}

// LookAhead reads from an offset like a read_committed reader. It counts the messages, and skips what takes offsets without being a
// message: the ends of transactions, and records of aborted transactions.
func LookAhead(client sarama.Client, topic string, partition int32, from int64) (u Unread, err error) {
	u = Unread{Next: from, First: -1}
	block, err := fetch(client, topic, partition, from)
	if err != nil {
		return u, err
	}
	aborted := abortedBy(block.AbortedTransactions)
	for _, records := range block.RecordsSet {
		if batch := records.RecordBatch; batch == nil || batch.PartialTrailingRecord { // of a format before 0.11, or cut off
			break
		}
		u.count(records.RecordBatch, aborted)
	}
	if u.First < 0 {
		u.First = u.Next
	}
	return u, nil
}

func (u *Unread) count(batch *sarama.RecordBatch, aborted aborted) {
	from := u.Next
	u.Next = max(from, batch.LastOffset()+1)
	switch {
	case batch.Control:
		aborted.ended(batch)
		return
	case batch.IsTransactional && aborted.has(batch):
		return
	}
	for _, record := range batch.Records {
		offset := batch.FirstOffset + record.OffsetDelta
		if offset < from {
			continue
		}
		if u.First < 0 {
			u.First = offset
		}
		u.Messages++
	}
}

// aborted holds, by producer, the first offsets of aborted transactions that have not ended yet.
type aborted map[int64][]int64

func abortedBy(transactions []*sarama.AbortedTransaction) aborted {
	a := aborted{}
	for _, t := range transactions {
		a[t.ProducerID] = append(a[t.ProducerID], t.FirstOffset)
	}
	for _, begins := range a { // Apache Kafka has sorted them; other brokers need not
		slices.Sort(begins)
	}
	return a
}

func (a aborted) has(batch *sarama.RecordBatch) bool {
	begins := a[batch.ProducerID]
	return len(begins) > 0 && begins[0] <= batch.LastOffset()
}

// ended records the end of a transaction. Its key has a version and a type, of two bytes each: type 0 is an abort.
func (a aborted) ended(batch *sarama.RecordBatch) {
	if !a.has(batch) || len(batch.Records) == 0 || len(batch.Records[0].Key) < 4 {
		return
	}
	if key := batch.Records[0].Key; key[2] == 0 && key[3] == 0 {
		a[batch.ProducerID] = a[batch.ProducerID][1:]
	}
}
