package fakepubsub

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

// envelope is the body of a wrapped push (https://cloud.google.com/pubsub/docs/push#receive_push).
type envelope struct {
	Message         envelopeMessage `json:"message"`
	Subscription    string          `json:"subscription"`
	DeliveryAttempt int32           `json:"deliveryAttempt,omitempty"`
}

// envelopeMessage has two fields in both spellings, as Google sends them.
type envelopeMessage struct {
	Data             []byte            `json:"data,omitempty"`
	Attributes       map[string]string `json:"attributes,omitempty"`
	MessageID        string            `json:"messageId"`
	MessageIDSnake   string            `json:"message_id"`
	PublishTime      time.Time         `json:"publishTime"`
	PublishTimeSnake time.Time         `json:"publish_time"`
	OrderingKey      string            `json:"orderingKey,omitempty"`
}

// newRequest returns the push request for a message, in the form that the subscription asks for. Like the requests of Google's emulator,
// it has no token.
func newRequest(ctx context.Context, sub *pubsubpb.Subscription, received *pubsubpb.ReceivedMessage) (*http.Request, error) {
	message, published := received.GetMessage(), received.GetMessage().GetPublishTime().AsTime()
	endpoint := sub.GetPushConfig().GetPushEndpoint()
	if form := sub.GetPushConfig().GetNoWrapper(); form != nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(message.GetData()))
		if err != nil || !form.GetWriteMetadata() {
			return request, err
		}
		// https://cloud.google.com/pubsub/docs/payload-unwrapping
		for name, value := range message.GetAttributes() {
			request.Header.Set(name, value)
		}
		request.Header.Set("X-Goog-Pubsub-Subscription-Name", sub.GetName())
		request.Header.Set("X-Goog-Pubsub-Message-Id", message.GetMessageId())
		request.Header.Set("X-Goog-Pubsub-Publish-Time", published.Format(time.RFC3339Nano))
		if key := message.GetOrderingKey(); key != "" {
			request.Header.Set("X-Goog-Pubsub-Ordering-Key", key)
		}
		if attempt := received.GetDeliveryAttempt(); attempt > 0 {
			request.Header.Set("X-Goog-Pubsub-Delivery-Attempt", strconv.Itoa(int(attempt)))
		}
		return request, nil
	}
	body, err := json.Marshal(envelope{
		Message: envelopeMessage{
			Data: message.GetData(), Attributes: message.GetAttributes(), OrderingKey: message.GetOrderingKey(),
			MessageID: message.GetMessageId(), MessageIDSnake: message.GetMessageId(),
			PublishTime: published, PublishTimeSnake: published,
		},
		Subscription: sub.GetName(), DeliveryAttempt: received.GetDeliveryAttempt(),
	})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return request, nil
}
