package conn

import (
	"math/rand/v2"

	"github.com/IBM/sarama"
)

// someLeader returns a broker that leads partitions of the topic, because a broker that is gone soon leads none. Without one, it returns
// any broker.
func someLeader(client sarama.Client, topic string) *sarama.Broker {
	if partitions, err := client.WritablePartitions(topic); err == nil && len(partitions) > 0 {
		if leader, err := client.Leader(topic, partitions[rand.IntN(len(partitions))]); err == nil {
			return leader
		}
	}
	return client.LeastLoadedBroker()
}

// TopicSetting asks a broker for a setting of the topic. If this user may not ask, known is false and refusal says why.
func TopicSetting(client sarama.Client, topic, setting string) (value string, known bool, refusal, err error) {
	broker := someLeader(client, topic)
	if broker == nil {
		return "", false, nil, sarama.ErrOutOfBrokers
	}
	response, err := broker.DescribeConfigs(&sarama.DescribeConfigsRequest{
		Version:   4,
		Resources: []*sarama.ConfigResource{{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{setting}}},
	})
	if err != nil {
		return "", false, nil, err
	}
	for _, resource := range response.Resources {
		for _, entry := range resource.Configs {
			if entry.Name == setting {
				return entry.Value, true, nil, nil
			}
		}
		refusal = sarama.KError(resource.ErrorCode)
	}
	return "", false, refusal, nil
}
