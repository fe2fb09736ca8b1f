package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/ledger"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// producer sends the requests of one transactional ID, or of those that follow it. It belongs to the committer's goroutine;
// within run, the requests of the offsets have one of their own.
type producer struct {
	id          string
	base        string // of the ID
	renamed     int    // so many times
	group       string
	notes       string  // the topic of notes, or ""
	instance    *string // of a static member
	timeout     time.Duration
	client      sarama.Client
	topics      *conn.Topics
	compression wire.Compression
	log         *slog.Logger
	without     Omission
	noteless    bool // the brokers refuse notes

	identity  sequence.Identity
	v2        bool      // its transactions are of version 2 (KIP-890), since it has the identity
	doubtful  bool      // a batch of this epoch may still arrive
	begun     time.Time // when requests of a transaction that has not ended were first sent, or the zero time
	sequences map[topicPartition]int32
	outlets   *outlets

	transactions, additions, offsets *conn.Link // to the transaction's coordinator twice, and to the group's
}

type topicPartition struct {
	topic     string
	partition int32
}

// Omission is what a test leaves out, to see that something breaks without it.
type Omission int

// The omissions.
const (
	WithoutMember Omission = 1 << iota // who commits the offsets, so that one who has lost his partitions still may
	WithoutStable                      // waiting for offsets that a transaction has not committed yet
	WithoutEpoch                       // raising the epoch, so that late requests count
	WithoutV2                          // transactions of version 2
)

func newProducer(life context.Context, client sarama.Client, topics *conn.Topics, c Config, id string) *producer {
	p := &producer{
		id:          id,
		base:        id,
		group:       c.Consumer,
		timeout:     c.Timeout,
		client:      client,
		topics:      topics,
		compression: c.Compression,
		log:         c.Log,
		without:     c.Without,
		identity:    sequence.Nobody,
		outlets:     newOutlets(life, client, topics, c.Partitioner, produce.NewSpread(c.Sticky)),
	}
	if c.Instance != "" {
		p.instance = &c.Instance
	}
	coordinator := func() (*sarama.Broker, error) { return client.TransactionCoordinator(p.id) }
	refresh := func() error { return client.RefreshTransactionCoordinator(p.id) }
	p.transactions = conn.NewLink(client, coordinator, refresh)
	p.additions = conn.NewLink(client, coordinator, refresh)
	p.offsets = conn.NewLink(client,
		func() (*sarama.Broker, error) { return client.Coordinator(c.Consumer) },
		func() error { return client.RefreshCoordinator(c.Consumer) })
	return p
}

func (p *producer) close() {
	p.transactions.Close()
	p.additions.Close()
	p.offsets.Close()
	p.outlets.close()
}

// The waits between attempts of a request that a coordinator has not executed: the first, and the largest.
const (
	firstCallRetry = time.Millisecond
	lastCallRetry  = 50 * time.Millisecond
)

// call sends a request until it is executed or refused. Only what a coordinator says to have not executed is sent again:
// what is lost may arrive late, which only a new epoch makes harmless.
func (p *producer) call(ctx context.Context, l *conn.Link, send func() (sarama.KError, error)) error {
	retry := backoff.Doubling{Min: firstCallRetry, Max: lastCallRetry}
	for attempt := 1; ; attempt++ {
		code, err := send()
		switch {
		case err != nil:
			return err
		case code == sarama.ErrNoError:
			return nil
		case code == sarama.ErrNotCoordinatorForConsumer || code == sarama.ErrConsumerCoordinatorNotAvailable:
			l.Move()
		case code == sarama.ErrConcurrentTransactions: // the one before is about to end
		case code == sarama.ErrOffsetsLoadInProgress, code == sarama.ErrUnstableOffsetCommit:
		default:
			return sequence.Named(code)
		}
		if !backoff.Sleep(ctx, retry.Wait(attempt)) {
			return errors.Join(code, ctx.Err())
		}
	}
}

// self is the producer as coordinators know it.
func (p *producer) self() conn.Producer {
	return conn.Producer{ID: p.id, Identity: p.identity, V2: p.v2}
}

// become is called when the coordinator has told who the producer is now. Each epoch counts its batches from 0.
func (p *producer) become(next sequence.Identity) {
	if next != p.identity {
		p.identity, p.sequences, p.doubtful = next, map[topicPartition]int32{}, false
	}
	p.begun = time.Time{}
}

// superseded tells that the brokers know a later epoch of the producer, or have forgotten it.
func superseded(err error) bool {
	for _, code := range []sarama.KError{sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrUnknownProducerID} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// addOffsets makes the group's offsets part of the transaction.
func (p *producer) addOffsets(ctx context.Context) error {
	err := p.call(ctx, p.additions, func() (sarama.KError, error) { return p.additions.AddOffsets(p.self(), p.group) })
	if err != nil {
		return fmt.Errorf("add the group's offsets to the transaction: %w", err)
	}
	return nil
}

// next is what the group has when the batch is committed.
func (p *producer) next(batch []*ledger.Unit) map[ledger.Place]ledger.Position {
	next := ledger.NextOffsets(batch)
	if p.noteless {
		for place, at := range next {
			next[place] = ledger.Position{Offset: at.Offset}
		}
	}
	return next
}

// commitOffsets commits the offsets that follow the batch in the transaction, on behalf of the member.
func (p *producer) commitOffsets(ctx context.Context, batch []*ledger.Unit, by member) error {
	as := conn.Member{ID: by.id, Generation: by.generation, Instance: p.instance}
	if p.without&WithoutMember != 0 {
		as = conn.Member{Generation: sarama.GroupGenerationUndefined}
	}
	for {
		offsets := map[string]map[int32]conn.Position{}
		for place, at := range p.next(batch) {
			if offsets[place.Topic] == nil {
				offsets[place.Topic] = map[int32]conn.Position{}
			}
			offsets[place.Topic][place.Number] = conn.Position(at)
		}
		err := p.call(ctx, p.offsets, func() (sarama.KError, error) { return p.offsets.CommitOffsets(p.self(), p.group, as, offsets) })
		switch {
		case err == nil:
			return nil
		case p.noteless || !errors.Is(err, sarama.ErrOffsetMetadataTooLarge):
			return fmt.Errorf("commit the offsets in the transaction: %w", err)
		}
		p.noteless = true
		p.log.Warn("the brokers refuse notes beside offsets, so a message that kills its process is redelivered for ever: raise offset.metadata.max.bytes of the brokers to its default of 4096")
	}
}

// end commits or aborts the transaction.
func (p *producer) end(ctx context.Context, commit bool) error {
	err := p.call(ctx, p.transactions, func() (sarama.KError, error) {
		next, code, err := p.transactions.EndTransaction(p.self(), commit)
		if err == nil && code == sarama.ErrNoError {
			p.become(next)
		}
		return code, err
	})
	if err != nil {
		return fmt.Errorf("end the transaction: %w", err)
	}
	return nil
}

// committed asks for the group's offsets of the partitions, when no transaction can change them any more.
func (p *producer) committed(ctx context.Context, places []ledger.Place) (map[ledger.Place]ledger.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	partitions := map[string][]int32{}
	for _, place := range places {
		partitions[place.Topic] = append(partitions[place.Topic], place.Number)
	}
	var offsets map[string]map[int32]conn.Position
	err := p.call(ctx, p.offsets, func() (code sarama.KError, err error) {
		offsets, code, err = p.offsets.Offsets(p.group, partitions, p.without&WithoutStable == 0)
		return code, err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the group's offsets: %w", err)
	}
	found := make(map[ledger.Place]ledger.Position, len(places))
	for _, place := range places {
		found[place] = ledger.Position(offsets[place.Topic][place.Number])
	}
	return found, nil
}
