package sequence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// partitionLog is a partition as its broker keeps it: it knows of each producer the epoch and the latest batches.
type partitionLog struct {
	records   []string
	producers map[int64]*producerState
}

type producerState struct {
	epoch  int16
	next   int32
	latest [][2]int32 // first sequence and number of records, of five
}

func (l *partitionLog) append(b *sarama.RecordBatch) sarama.KError {
	state := l.producers[b.ProducerID]
	if state == nil {
		state = &producerState{epoch: b.ProducerEpoch}
		l.producers[b.ProducerID] = state
	}
	if b.ProducerEpoch < state.epoch {
		return sarama.ErrInvalidProducerEpoch
	}
	if b.ProducerEpoch > state.epoch && b.FirstSequence == 0 {
		*state = producerState{epoch: b.ProducerEpoch}
	}
	n := int32(len(b.Records))
	if slices.Contains(state.latest, [2]int32{b.FirstSequence, n}) {
		return sarama.ErrDuplicateSequenceNumber
	}
	if b.ProducerEpoch != state.epoch || b.FirstSequence != state.next {
		return sarama.ErrOutOfOrderSequenceNumber
	}
	state.next += n
	state.latest = append(state.latest[max(0, len(state.latest)-4):], [2]int32{b.FirstSequence, n})
	for _, r := range b.Records {
		l.records = append(l.records, string(r.Value))
	}
	return sarama.ErrNoError
}

// published is one message of the model.
type published struct {
	*Item
	name  string
	bad   bool     // the broker refuses it
	after []string // of its key, published before, and not given up by then
}

func (p published) result() error { return p.Call.Results[0] }

// partitionModel is a partition, its log, and the network between them.
type partitionModel struct {
	*rapid.T
	part  *Partition
	log   partitionLog
	all   []published
	late  []*sarama.RecordBatch // may arrive at any time
	id    int64
	ended bool
}

func (m *partitionModel) publish(t *rapid.T) {
	key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")
	p := published{name: fmt.Sprint(len(m.all)), bad: rapid.IntRange(0, 9).Draw(t, "bad") == 0}
	p.Item = &Item{
		Key: key, Size: 10, Ctx: context.Background(), Record: &sarama.Record{Value: []byte(p.name)},
		Call: &Call{Results: make([]error, 1), Left: 1, Done: make(chan struct{})},
	}
	for _, other := range m.all {
		if key != "" && other.Key == key && (other.Waits() || other.result() == nil) {
			p.after = append(p.after, other.name)
		}
	}
	m.all = append(m.all, p)
	m.part.Add(p.Item)
}

func (m *partitionModel) send(limit int) bool {
	if m.part.InFlight || !m.part.Wants() {
		return false
	}
	if m.part.Lacks() {
		m.part.Found(sarama.NewBroker("a:1"), Identity{ID: m.id}, nil)
	}
	m.part.Take(limit, func(records []*sarama.Record) *sarama.RecordBatch {
		return wire.NewBatch(records, wire.Compression{}, time.Unix(0, 0))
	})
	return true
}

// arrive is what the broker answers to the batch.
func (m *partitionModel) arrive(b *sarama.RecordBatch, tells bool) *sarama.ProduceResponseBlock {
	block := &sarama.ProduceResponseBlock{}
	for i, r := range b.Records {
		if slices.ContainsFunc(m.all, func(p published) bool { return p.bad && p.name == string(r.Value) }) {
			block.Err = sarama.ErrInvalidRecord
			if tells {
				block.RecordErrors = append(block.RecordErrors, sarama.ProduceResponseRecordError{BatchIndex: int32(i)})
			}
		}
	}
	if block.Err == sarama.ErrNoError {
		block.Err = m.log.append(b)
	}
	return block
}

func (m *partitionModel) answer(block *sarama.ProduceResponseBlock, failure error) {
	var response *sarama.ProduceResponse
	if failure == nil {
		response = &sarama.ProduceResponse{Blocks: map[string]map[int32]*sarama.ProduceResponseBlock{"t": {0: block}}}
	}
	a := AnswerTo(response, failure, "t", 0)
	if a.Kind == Fenced {
		m.id++
	}
	if a.Kind != Appended {
		m.part.Leader = nil
	}
	m.part.Landed(a)
}

func (m *partitionModel) check() {
	place := map[string]int{}
	for i, name := range m.log.records {
		require.NotContains(m, place, name, "a duplicate")
		place[name] = i
	}
	for _, p := range m.all {
		at, there := place[p.name]
		if there {
			for _, before := range p.after {
				require.Contains(m, place, before, "a gap before %s", p.name)
				require.Less(m, place[before], at, "%s overtook %s", p.name, before)
			}
		}
		if p.Waits() {
			require.False(m, m.ended, "%s has no result", p.name)
			continue
		}
		switch err := p.result(); {
		case err == nil:
			require.True(m, there, "%s was acknowledged", p.name)
		case rejectedOrHeld(err):
			require.False(m, there, "%s: %v", p.name, err)
		}
	}
}

// TestPartitionModel: whatever becomes of requests and answers, and whoever gives up, no message is in the log twice, none
// of a key overtakes another or is there without one that was queued before it, and what has no error is there.
func TestPartitionModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &partitionModel{T: r, part: New("t", 0), log: partitionLog{producers: map[int64]*producerState{}}}
		inFlight := func(r *rapid.T) *sarama.RecordBatch {
			if !m.part.InFlight {
				r.Skip("nothing is under way")
			}
			return m.part.Batch.Wire
		}
		lost := func(r *rapid.T) {
			switch rapid.IntRange(0, 2).Draw(r, "how") {
			case 0:
				m.answer(nil, io.ErrUnexpectedEOF)
			case 1:
				m.answer(&sarama.ProduceResponseBlock{Err: sarama.ErrNotLeaderForPartition}, nil)
			case 2:
				m.answer(&sarama.ProduceResponseBlock{Err: sarama.ErrRequestTimedOut}, nil)
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"publish":      m.publish,
			"publish more": m.publish,
			"send":         func(r *rapid.T) { m.send(rapid.IntRange(0, wire.BatchOverhead+60).Draw(r, "limit")) },
			"answer": func(r *rapid.T) {
				b := inFlight(r)
				m.answer(m.arrive(b, rapid.Bool().Draw(r, "tells")), nil)
			},
			"lose the answer": func(r *rapid.T) {
				m.arrive(inFlight(r), false)
				lost(r)
			},
			"delay the request": func(r *rapid.T) {
				m.late = append(m.late, inFlight(r))
				lost(r)
			},
			"lose the request": func(r *rapid.T) {
				inFlight(r)
				lost(r)
			},
			"refuse for now": func(r *rapid.T) {
				inFlight(r)
				m.answer(&sarama.ProduceResponseBlock{Err: sarama.ErrNotEnoughReplicas}, nil)
			},
			"not connected": func(r *rapid.T) {
				inFlight(r)
				m.answer(nil, NotSentError{Cause: io.EOF})
			},
			"refuse for good": func(r *rapid.T) {
				inFlight(r)
				m.answer(&sarama.ProduceResponseBlock{Err: sarama.ErrTopicAuthorizationFailed}, nil)
			},
			"a late request arrives": func(r *rapid.T) {
				if len(m.late) == 0 {
					r.Skip("none")
				}
				i := rapid.IntRange(0, len(m.late)-1).Draw(r, "which")
				m.arrive(m.late[i], false)
				m.late = slices.Delete(m.late, i, i+1)
			},
			"give up": func(r *rapid.T) {
				items := m.part.Unsettled()
				if len(items) == 0 {
					r.Skip("nothing waits")
				}
				m.part.Fail([]*Item{rapid.SampledFrom(items).Draw(r, "which")}, context.Canceled)
			},
			"the broker forgets": func(r *rapid.T) {
				if len(m.late) > 0 || m.part.InFlight || m.part.Batch != nil {
					r.Skip("then nobody could tell a duplicate")
				}
				for _, state := range m.log.producers { // what it has, but not the count
					state.next, state.latest = 0, nil
				}
			},
			"another one takes the identity": func(*rapid.T) {
				if state := m.log.producers[m.id]; state != nil {
					*state = producerState{epoch: state.epoch + 1}
				}
			},
			"": func(*rapid.T) { m.check() },
		})
		for m.part.InFlight || m.send(1000) {
			m.answer(m.arrive(m.part.Batch.Wire, true), nil)
		}
		m.ended = true
		m.check()
		for _, b := range m.late {
			m.arrive(b, false)
		}
		m.check()
	})
}

func rejectedOrHeld(err error) bool {
	return errors.Is(err, transport.ErrRejected) || errors.Is(err, transport.ErrNotSent)
}
