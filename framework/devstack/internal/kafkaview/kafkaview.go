// Package kafkaview asks Kafka brokers how they see their cluster, and checks whether it works.
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

// ErrOtherCluster is returned if a broker of another cluster answers.
var ErrOtherCluster = errors.New("the broker that answers is of another cluster")

// Ask returns nil if a broker answers, sees at least size brokers and belongs to the cluster. An empty cluster ID matches any cluster.
func Ask(ctx context.Context, brokers []string, cluster string, size int) error {
	response, err := metadata(ctx, brokers, []kmsg.MetadataRequestTopic{}) // no topics; nil would ask for all
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
	// The client gets the context too: a request's context alone does not end the wait for a peer that accepts the connection and does
	// not answer.
	client, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(brokers...), kgo.RequestRetries(0))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = topics
	return request.RequestWith(ctx, client)
}

// View is the cluster as one broker sees it.
type View struct {
	brokers []int32 // the live ones
	topics  []kmsg.MetadataResponseTopic
}

// Of returns the cluster as the broker sees it.
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

// InSync returns an error for the first broker or replica that is missing in a cluster of the given size.
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

// Without returns an error for the first place where the broker is still listed.
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

// RoundTrip returns nil if a produced record can be consumed.
func RoundTrip(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(readyTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	produced := make(chan error, 1)
	client.Produce(ctx, &kgo.Record{Topic: readyTopic, Value: []byte("ready")}, func(_ *kgo.Record, err error) { produced <- err })
	select {
	case err = <-produced:
	case <-ctx.Done(): // ProduceSync may wait for ever for a broker that has ended
		err = ctx.Err()
	}
	if err != nil {
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
