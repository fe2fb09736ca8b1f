package kafka

import "github.com/millrace-go/millrace/transport/kafka/internal/group"

// What is added to the metadata of a message that goes to a dead-letter topic. The first four are named as those that
// package claim adds to what it forwards.
const (
	DeadReasonMetadata    = group.DeadReasonMetadata    // "millrace_dead_reason": "attempts"; "rejected"; "refused" when the brokers do not take what its handler has published; "killed" when processes died while it ran alone
	DeadErrorMetadata     = group.DeadErrorMetadata     // "millrace_dead_error": why it was rejected, or how many processes died
	DeadConsumerMetadata  = group.DeadConsumerMetadata  // "millrace_dead_consumer": whose handler failed
	DeadTopicMetadata     = group.DeadTopicMetadata     // "millrace_dead_topic": where the message came from
	DeadAttemptsMetadata  = group.DeadAttemptsMetadata  // "millrace_dead_attempts": a decimal number
	DeadPartitionMetadata = group.DeadPartitionMetadata // "millrace_dead_partition": of the topic, a decimal number
	DeadOffsetMetadata    = group.DeadOffsetMetadata    // "millrace_dead_offset": in the partition, a decimal number
)
