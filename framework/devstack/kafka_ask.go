package devstack

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// askKafka reports whether a broker answers, and is of the cluster; "" is any.
func askKafka(ctx context.Context, brokers []string, cluster string) error {
	// The client's own context too: a request's alone does not end the wait for a peer that accepts and keeps silent.
	client, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(brokers...), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if cluster != "" && (response.ClusterID == nil || *response.ClusterID != cluster) {
		return errors.New("the broker that answers is of another cluster")
	}
	if len(response.Brokers) == 0 {
		return errors.New("the cluster has no broker yet")
	}
	return nil
}

// readyTopic exists while roundTrip runs.
const readyTopic = "millrace-ready"

// roundTrip reports whether a record that is produced can be consumed.
func roundTrip(ctx context.Context, brokers []string) error {
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
