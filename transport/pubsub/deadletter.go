package pubsub

import "github.com/millrace-go/millrace/transport/pubsub/internal/receive"

// What Pub/Sub adds to the attributes of a message that it forwards to a dead-letter topic
// (https://cloud.google.com/pubsub/docs/handling-failures). They arrive as metadata.
const (
	DeadDeliveriesMetadata   = receive.DeadDeliveriesMetadata   // "CloudPubSubDeadLetterSourceDeliveryCount"
	DeadSubscriptionMetadata = receive.DeadSubscriptionMetadata // "CloudPubSubDeadLetterSourceSubscription"
	DeadProjectMetadata      = receive.DeadProjectMetadata      // "CloudPubSubDeadLetterSourceSubscriptionProject"
	DeadPublishTimeMetadata  = receive.DeadPublishTimeMetadata  // "CloudPubSubDeadLetterSourceTopicPublishTime"
)
