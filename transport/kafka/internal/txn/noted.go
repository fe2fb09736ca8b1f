package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// NotePartitions is how many partitions a topic of notes has. That of a number depends on it, so it never changes.
const NotePartitions = 16

// Noted implements transport.JointTransactions: transactions under one transactional ID, each with a note in a compacted topic.
//
// Unlike a member's, the ID never changes: it is what refuses an earlier holder. So while a transaction cannot end, because a
// partition that it has written to has no leader, Take waits.
type Noted struct {
	connect   func(context.Context) (sarama.Client, error)
	life      context.Context
	topics    *conn.Topics // of events
	notes     *conn.Topics // of notes
	publisher *produce.Publisher
	config    Config
	id        string
	topic     string
	partition int32
	key       string

	producer *producer  // nil before the first Take
	read     leadership // of the leader that the newest note was read from
	proven   bool       // a transaction has committed since Take
}

// leadership is a term of a partition's leader.
type leadership struct{ broker, epoch int32 }

// NewNoted returns the transactions of that number under the name. Config.Topic is the topic of the notes, and
// Config.Consumer is not used. Connections end with life.
func NewNoted(life context.Context, cluster *conn.Cluster, topics, notes *conn.Topics, publisher *produce.Publisher, c Config, name string, number int) *Noted {
	return &Noted{
		connect: func(ctx context.Context) (sarama.Client, error) {
			return cluster.Client(ctx, life, func(s *sarama.Config) {
				s.Net.ReadTimeout = c.Timeout // later the brokers have aborted the transaction
				s.Net.WriteTimeout = c.Timeout
			})
		},
		life: life, topics: topics, notes: notes, publisher: publisher, config: c,
		id: fmt.Sprintf("%s-%s-%d", c.IDPrefix, name, number), topic: c.Topic,
		partition: int32(number % NotePartitions), key: fmt.Sprint(number),
	}
}

// Take implements transport.Transactions.
func (n *Noted) Take(ctx context.Context) (note []byte, err error) {
	if note, err = n.take(ctx); err != nil {
		return nil, fmt.Errorf("%w: transactional ID %s: %w", transport.ErrUnavailable, n.id, err)
	}
	return note, nil
}

func (n *Noted) take(ctx context.Context) ([]byte, error) {
	if err := n.notes.Ensure(ctx, n.topic); err != nil {
		return nil, err
	}
	if n.producer == nil {
		client, err := n.connect(ctx)
		if err != nil {
			return nil, err
		}
		n.producer = newProducer(n.life, client, n.topics, n.config, n.id)
		n.producer.notes = n.topic
	}
	p := n.producer
	delete(p.outlets.stale, n.topic) // they are of the events' topics
	p.outlets.renew()
	// As one that is nobody yet it gets the next epoch whoever had the last one, and whatever was open is aborted.
	p.become(sequence.Nobody)
	if err := p.raise(ctx); err != nil {
		return nil, err
	}
	err := p.client.RefreshMetadata(n.topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) { // it was deleted
		if err = n.notes.EnsureAgain(ctx, n.topic); err == nil {
			err = p.client.RefreshMetadata(n.topic)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", n.topic, err)
	}
	partitions, err := p.client.Partitions(n.topic)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up topic %s: %w", n.topic, err)
	case len(partitions) < NotePartitions:
		return nil, fmt.Errorf("topic %s has %d partitions, and needs %d: add partitions (kafka-topics.sh --alter --topic %s --partitions %d)",
			n.topic, len(partitions), NotePartitions, n.topic, NotePartitions)
	}
	n.proven = false
	return n.latest(ctx)
}

// leadership is the one that the client knows of the partition of the notes.
func (n *Noted) leadership() (leadership, error) {
	leader, epoch, err := n.producer.client.LeaderAndEpoch(n.topic, n.partition)
	if err != nil {
		return leadership{}, fmt.Errorf("find the leader of %s, partition %d: %w", n.topic, n.partition, err)
	}
	return leadership{leader.ID(), epoch}, nil
}

// prove returns an error unless the broker that has taken the new note is the one that the newest note was read from. That one may
// have lost its partition before without knowing it, and then a newer note may exist. A leader that has lost its partition takes no
// note, because its replicas follow another broker.
func (n *Noted) prove() error {
	if n.proven {
		return nil
	}
	switch now, err := n.leadership(); {
	case err != nil:
		return err
	case now != n.read:
		return fmt.Errorf("%s, partition %d, has a new leader since the newest note was read: the note is read again", n.topic, n.partition)
	}
	return nil
}

// leaderPatience is how long Take waits for a broker to learn that it leads the partition of the notes: of a new topic, or after
// another broker has ended.
const leaderPatience = 3 * time.Second

func (n *Noted) latest(ctx context.Context) ([]byte, error) {
	patience, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	retry := backoff.Doubling{Min: 10 * firstCallRetry, Max: lastCallRetry}
	for attempt := 1; ; attempt++ {
		var note []byte
		var err error
		if n.read, err = n.leadership(); err == nil {
			note, err = conn.Latest(ctx, n.producer.client, n.topic, n.partition, n.key)
		}
		if err == nil {
			return note, nil
		}
		_ = n.producer.client.RefreshMetadata(n.topic) // the next attempt tells
		moved := errors.Is(err, sarama.ErrNotLeaderForPartition) || errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable)
		if !moved || !backoff.Sleep(patience, retry.Wait(attempt)) {
			return nil, err
		}
	}
}

// Publish implements transport.Transactions.
func (n *Noted) Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error {
	return n.PublishTo(ctx, slices.Repeat([]string{topic}, len(msgs)), msgs, note)
}

// PublishTo implements transport.JointTransactions.
func (n *Noted) PublishTo(ctx context.Context, topics []string, msgs []*message.Message, note []byte) []error {
	results := make([]error, len(msgs))
	all := func(of func(topic string) error) []error {
		for i, topic := range topics {
			if i > 0 && topic == topics[i-1] {
				results[i] = results[i-1]
			} else {
				results[i] = of(topic)
			}
		}
		return results
	}
	if n.producer == nil {
		return all(func(topic string) error {
			return fmt.Errorf("publish to %s: %w: Take was not called", topic, transport.ErrUnavailable)
		})
	}
	outputs, fine := placed{}, true
	choose := placing{n.producer.outlets, map[topicPartition]error{}}
	for i, topic := range topics {
		staged, err := n.publisher.Stage(topic, msgs[i:i+1], true)
		if err == nil {
			var at topicPartition
			if at, err = choose.place(staged[0]); err == nil {
				outputs[at] = append(outputs[at], staged[0])
				continue
			}
			err = unavailable(err)
		}
		results[i], fine = fmt.Errorf("publish to %s: %w", topic, conn.MayWrite(err, topic)), false
	}
	if !fine { // nothing is sent
		for i, err := range results {
			if err == nil {
				results[i] = transport.ErrNotSent
			}
		}
		return results
	}
	if err := n.commit(ctx, outputs, note); err != nil {
		refused := noteError{}
		isNote := errors.As(err, &refused)
		return all(func(topic string) error {
			if isNote {
				return fmt.Errorf("publish to %s in a transaction: %w", topic, refused)
			}
			return fmt.Errorf("publish to %s in a transaction: %w", topic, conn.MayWrite(unavailable(err), topic))
		})
	}
	return results
}

// unavailable says of an error that is no message's fault that it is none.
func unavailable(err error) error {
	if errors.Is(err, transport.ErrRejected) || errors.Is(err, transport.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

func (n *Noted) commit(ctx context.Context, outputs placed, note []byte) error {
	p := n.producer
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	record := &sarama.Record{Key: []byte(n.key), Value: note}
	outputs[topicPartition{n.topic, n.partition}] = []*produce.Output{{Topic: n.topic, Record: record, Size: wire.RecordSize(record)}}
	p.begun = time.Now()
	var err error
	if p.v2 {
		err = p.rounds(ctx, outputs)
	} else {
		err = p.send(ctx, outputs)
	}
	sent := err == nil
	if sent {
		err = n.prove()
	}
	switch {
	case err == nil:
		err = p.end(ctx, true)
		n.proven = n.proven || err == nil
	case p.doubtful: // a batch that arrives after the end of the transaction would be of the next one; the next Take raises the epoch
	case sent, errors.Is(err, transport.ErrRejected), errors.As(err, new(noteError)):
		// Readers of committed records wait for the end of a transaction. After a failure of another kind the next Take ends it.
		_ = p.end(ctx, false) // else the brokers abort it after Timeout
	}
	return err
}

// noteError is of a note that the broker refuses. It never wraps ErrRejected: no message is to blame.
type noteError struct{ error }

func (e noteError) Unwrap() error { return e.error }

// failure is the error of a partition.
func (p *producer) failure(at topicPartition, err error) error {
	if at.topic != p.notes {
		return fmt.Errorf("%s, partition %d: %w", at.topic, at.partition, err)
	}
	advice := conn.MayWrite(err, at.topic)
	if errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrMessageSetSizeTooLarge) {
		advice = fmt.Errorf("set max.message.bytes of the topic %s to %d or more, or lower RelayConfig.MaxInFlight: %w", at.topic, conn.DefaultMaxMessageBytes, err)
	}
	return noteError{fmt.Errorf("%w: the note in %s, partition %d: %v", transport.ErrUnavailable, at.topic, at.partition, advice)} //nolint:errorlint // it may be ErrRejected
}

// Close implements transport.Transactions.
func (n *Noted) Close() error {
	if n.producer == nil {
		return nil
	}
	n.producer.close()
	client := n.producer.client
	n.producer = nil
	return client.Close()
}
