// Package kafkaview asks brokers of Kafka what they know of their cluster, and whether it works.
package kafkaview

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrOtherCluster is the error where a broker of another cluster answers.
var ErrOtherCluster = errors.New("the broker that answers is of another cluster")

// Ask reports whether a broker answers, knows of at least so many, and then whether it is of the cluster; "" is any.
func Ask(ctx context.Context, brokers []string, cluster string, size int) error {
	response, err := metadata(ctx, brokers, []kmsg.MetadataRequestTopic{}) // none; nil would be all
	if err != nil {
		return err
	}
	if len(response.Brokers) < size {
		return fmt.Errorf("the cluster has %d brokers of %d", len(response.Brokers), size)
	}
	if cluster != "" && (response.ClusterID == nil || *response.ClusterID != cluster) {
		return ErrOtherCluster
	}
	return nil
}

func metadata(ctx context.Context, brokers []string, topics []kmsg.MetadataRequestTopic) (*kmsg.MetadataResponse, error) {
	// The client's own context too: a request's alone does not end the wait for a peer that accepts and keeps silent.
	client, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(brokers...), kgo.RequestRetries(0))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = topics
	return request.RequestWith(ctx, client)
}

// View is the cluster in the eyes of one broker.
type View struct {
	brokers []int32 // that are at work
	topics  []kmsg.MetadataResponseTopic
}

// Of is the cluster as a broker knows it.
func Of(ctx context.Context, broker string) (View, error) {
	response, err := metadata(ctx, []string{broker}, nil)
	if err != nil {
		return View{}, err
	}
	view := View{topics: response.Topics}
	for _, one := range response.Brokers {
		view.brokers = append(view.brokers, one.NodeID)
	}
	return view, nil
}

// InSync reports the first thing that is missing of a cluster of so many brokers.
func (v View) InSync(size int) error {
	if len(v.brokers) < size {
		return fmt.Errorf("%d brokers of %d are at work", len(v.brokers), size)
	}
	return v.each(func(p kmsg.MetadataResponseTopicPartition) error {
		if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
			return fmt.Errorf("in sync are %v of %v, the leader is %d", p.ISR, p.Replicas, p.Leader)
		}
		return nil
	})
}

// Without reports the first place where the broker is still counted on.
func (v View) Without(broker int32) error {
	if slices.Contains(v.brokers, broker) {
		return errors.New("it is thought to be at work")
	}
	return v.each(func(p kmsg.MetadataResponseTopicPartition) error {
		if p.Leader == broker || slices.Contains(p.ISR, broker) {
			return fmt.Errorf("in sync are %v, the leader is %d", p.ISR, p.Leader)
		}
		return nil
	})
}

// each returns the first error of a partition.
func (v View) each(check func(kmsg.MetadataResponseTopicPartition) error) error {
	for _, topic := range v.topics {
		for _, partition := range topic.Partitions {
			if err := check(partition); err != nil {
				return fmt.Errorf("partition %d of %s: %w", partition.Partition, *topic.Topic, err)
			}
		}
	}
	return nil
}

// readyTopic exists while RoundTrip runs.
const readyTopic = "millrace-ready"

// RoundTrip reports whether a record that is produced can be consumed.
func RoundTrip(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(
		kgo.WithContext(ctx),
		kgo.SeedBrokers(brokers...),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(readyTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: readyTopic, Value: []byte("ready")}).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	for {
		fetches := client.PollFetches(ctx)
		if fetches.NumRecords() > 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("consume: %w", err)
		}
	}
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.TimeoutMillis = 5000
	request.TopicNames = []string{readyTopic}
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = kmsg.StringPtr(readyTopic)
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, deleted := range response.Topics {
		if err := kerr.ErrorForCode(deleted.ErrorCode); err != nil {
			return fmt.Errorf("delete the topic: %w", err)
		}
	}
	return nil
}
