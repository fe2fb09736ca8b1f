package push

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// The headers of an unwrapped push, beside the message's attributes (https://cloud.google.com/pubsub/docs/payload-unwrapping). The
// delivery attempt is not documented; it is read if it is there.
const (
	headerPrefix       = "X-Goog-"
	messageIDHeader    = "X-Goog-Pubsub-Message-Id"
	subscriptionHeader = "X-Goog-Pubsub-Subscription-Name"
	publishTimeHeader  = "X-Goog-Pubsub-Publish-Time"
	orderingKeyHeader  = "X-Goog-Pubsub-Ordering-Key"
	attemptHeader      = "X-Goog-Pubsub-Delivery-Attempt"
	// emulatorKeyHeader is the ordering key's header in Google's emulator.
	emulatorKeyHeader = "X-Goog-Ordering-Key"
)

// envelope is the body of a wrapped push (https://cloud.google.com/pubsub/docs/push). Google sends some fields in both spellings.
type envelope struct {
	Message *struct {
		Data             []byte            `json:"data"`
		Attributes       map[string]string `json:"attributes"`
		MessageID        string            `json:"messageId"`
		MessageIDSnake   string            `json:"message_id"`
		PublishTime      time.Time         `json:"publishTime"`
		PublishTimeSnake time.Time         `json:"publish_time"`
		OrderingKey      string            `json:"orderingKey"`
		OrderingKeySnake string            `json:"ordering_key"`
	} `json:"message"`
	Subscription         string `json:"subscription"`
	DeliveryAttempt      *int   `json:"deliveryAttempt"`
	DeliveryAttemptSnake *int   `json:"delivery_attempt"`
}

// pushed is the content of one push request.
type pushed struct {
	message      *pubsub.Message
	subscription string // the full name in the request
}

// decode reads a push request in either form. The request shows which form it has, so that a service and its subscription need not change
// at the same moment. unwrapped decides if it looks like both.
func decode(header http.Header, body []byte, unwrapped bool) (pushed, error) {
	named := header.Get(messageIDHeader) != ""
	if unwrapped && named {
		return decodeHeaders(header, body), nil
	}
	p, err := decodeEnvelope(body)
	switch {
	case err != nil && named:
		return decodeHeaders(header, body), nil
	case err != nil && unwrapped:
		return p, fmt.Errorf("no %s header, which comes with no_wrapper.write_metadata, and no envelope either: %w", messageIDHeader, err)
	}
	return p, err
}

func decodeEnvelope(body []byte) (pushed, error) {
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return pushed{}, fmt.Errorf("body is no Pub/Sub push envelope: %w", err)
	}
	m := e.Message
	if m == nil || m.MessageID == "" && m.MessageIDSnake == "" {
		return pushed{}, errors.New("body is no Pub/Sub push envelope: it has no message.messageId")
	}
	message := &pubsub.Message{
		ID:              cmp.Or(m.MessageID, m.MessageIDSnake),
		Data:            m.Data,
		Attributes:      m.Attributes,
		PublishTime:     cmp.Or(m.PublishTime, m.PublishTimeSnake),
		OrderingKey:     cmp.Or(m.OrderingKey, m.OrderingKeySnake),
		DeliveryAttempt: cmp.Or(e.DeliveryAttempt, e.DeliveryAttemptSnake),
	}
	return pushed{message, e.Subscription}, nil
}

// decodeHeaders reads an unwrapped push. HTTP does not keep the case of header names, so the attributes' names are in lower case; of two
// that differ only in case, one is lost.
//
// An attribute may have the name of any of Pub/Sub's own headers, so an invalid value is left out. An error would refuse the message
// forever, before it can become a dead letter.
func decodeHeaders(header http.Header, body []byte) pushed {
	message := &pubsub.Message{
		ID:          header.Get(messageIDHeader),
		Data:        body,
		Attributes:  map[string]string{},
		OrderingKey: cmp.Or(header.Get(orderingKeyHeader), header.Get(emulatorKeyHeader)),
	}
	if published, err := time.Parse(time.RFC3339Nano, header.Get(publishTimeHeader)); err == nil {
		message.PublishTime = published
	}
	if attempt, err := strconv.Atoi(header.Get(attemptHeader)); err == nil && attempt > 0 {
		message.DeliveryAttempt = &attempt
	}
	for name, values := range header {
		kept := !ofTheRequest(name) || name == "Content-Type" && isCloudEvent(header)
		if kept && len(name) <= wire.Limits.MetadataKeyBytes && len(values[0]) <= wire.Limits.MetadataValueBytes {
			message.Attributes[strings.ToLower(name)] = values[0]
		}
	}
	return pushed{message, header.Get(subscriptionHeader)}
}

// isCloudEvent reports whether the request carries a CloudEvent. Then the content type is the message's own attribute, without which a
// structured event is not recognized, and a binary one loses its datacontenttype. Of other messages Pub/Sub may have chosen it itself.
func isCloudEvent(header http.Header) bool {
	return header.Get("Ce-Specversion") != "" || strings.HasPrefix(strings.ToLower(header.Get("Content-Type")), "application/cloudevents")
}

// ofTheRequest reports whether a header belongs to the HTTP request or to proxies on its way. An attribute with such a name looks the
// same and is not delivered. Trace headers are kept, because they are as useful from either source. No list of proxies is complete:
// headers of other proxies become metadata, unless they are larger than an attribute can be.
func ofTheRequest(name string) bool {
	switch name {
	case "Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Connection",
		"Content-Encoding", "Content-Language", "Content-Length", "Content-Type", "Cookie", "Date", "Expect", "Forwarded",
		"From", "Host", "Keep-Alive", "Origin", "Pragma", "Priority", "Proxy-Authorization", "Proxy-Connection",
		"Referer", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Via",
		"X-Cloud-Trace-Context", "X-Real-Ip", "X-Request-Id", "X-Serverless-Authorization":
		return true
	}
	return strings.HasPrefix(name, headerPrefix) || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Appengine-") ||
		strings.HasPrefix(name, "X-Envoy-")
}
