package conn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// rightsPatience is how long a new subscription waits for the answer about its rights.
const rightsPatience = 3 * time.Second

// advisedError is an error that already says how to fix it.
type advisedError struct{ error }

// Unwrap returns the wrapped error.
func (e advisedError) Unwrap() error { return e.error }

// MayWrite adds the missing right to an error of a publisher.
func MayWrite(err error, topic string) error {
	if advised := (advisedError{}); errors.As(err, &advised) || !errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
		return err
	}
	return fmt.Errorf("allow this user WRITE on the topic %s (kafka-acls.sh --add --operation WRITE --topic %s --allow-principal …): %w", topic, topic, err)
}

// WithRemedy adds the missing right, or the setting to change, to an error of the consumer.
func WithRemedy(err error, consumer, topic string) error {
	var right string
	advised := advisedError{}
	switch {
	case errors.As(err, &advised):
		return err
	case errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		right = fmt.Sprintf("READ on the group %s (kafka-acls.sh --add --operation READ --group %s --allow-principal …)", consumer, consumer)
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		right = fmt.Sprintf("READ on the topic %s (kafka-acls.sh --add --operation READ --topic %s --allow-principal …)", topic, topic)
	case errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed):
		right = "WRITE and DESCRIBE on transactional IDs that begin with Config.Transaction.IDPrefix (kafka-acls.sh --add --producer --transactional-id … --resource-pattern-type prefixed --allow-principal …)"
	case errors.Is(err, sarama.ErrInconsistentGroupProtocol):
		return fmt.Errorf("members of the group %s share partitions by another assignment: "+
			"offer it in ConsumerConfig.Join (kafka.consumer.join or kafka.consumers.NAME.join) until the last of them has left: %w", consumer, err)
	default:
		return err
	}
	return fmt.Errorf("allow this user %s: %w", right, err)
}

// MayJoin checks whether this user may be a member of the group. Without the right, a member would try to join again and again. Only a
// refusal is an error: brokers that do not answer in time may do so later.
func (c *Cluster) MayJoin(ctx context.Context, client sarama.Client, group string) error {
	patient, cancel := context.WithTimeout(ctx, rightsPatience)
	defer cancel()
	err := c.Within(patient, func() error {
		coordinator, err := client.Coordinator(group)
		if err != nil {
			return err
		}
		answer, err := coordinator.Heartbeat(&sarama.HeartbeatRequest{Version: 3, GroupId: group, GenerationId: -1})
		if err != nil {
			return err
		}
		return answer.Err // with the right, the error is that there is no such member
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		return err
	}
	return nil
}
