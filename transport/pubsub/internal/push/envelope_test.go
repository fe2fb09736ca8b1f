package push

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

var published = time.Date(2026, 2, 26, 19, 13, 55, 749e6, time.UTC)

func TestDecodeEnvelope(t *testing.T) {
	t.Parallel()
	fifth := 5
	for name, c := range map[string]struct {
		body string
		want pubsub.Message
	}{
		// As in Google's documentation, with all that there is.
		"full": {
			`{"deliveryAttempt": 5, "message": {"attributes": {"key": "value", "grüße": "日本語"}, "data": "SGVsbG8=", "messageId": "1",
			"message_id": "1", "orderingKey": "k", "publishTime": "2026-02-26T19:13:55.749Z", "publish_time": "2026-02-26T19:13:55.749Z"},
			"subscription": "projects/p/subscriptions/topic.c"}`,
			pubsub.Message{ID: "1", Data: []byte("Hello"), Attributes: map[string]string{"key": "value", "grüße": "日本語"}, OrderingKey: "k", PublishTime: published, DeliveryAttempt: &fifth},
		},
		"snake case alone": {
			`{"delivery_attempt": 5, "message": {"data": "SGVsbG8=", "message_id": "1", "ordering_key": "k", "publish_time": "2026-02-26T19:13:55.749Z"}, "subscription": "projects/p/subscriptions/topic.c"}`,
			pubsub.Message{ID: "1", Data: []byte("Hello"), OrderingKey: "k", PublishTime: published, DeliveryAttempt: &fifth},
		},
		"attributes alone": {
			`{"message": {"attributes": {"a": "only"}, "messageId": "1"}, "subscription": "projects/p/subscriptions/topic.c"}`,
			pubsub.Message{ID: "1", Attributes: map[string]string{"a": "only"}},
		},
		// As Google's emulator has it.
		"emulator": {
			`{"subscription":"projects\/p\/subscriptions\/topic.c","message":{"publishTime":"2026-02-26T19:13:55.749Z","data":"","publish_time":"2026-02-26T19:13:55.749Z","messageId":"1","attributes":{"a":""},"message_id":"1"}}`,
			pubsub.Message{ID: "1", Data: []byte{}, Attributes: map[string]string{"a": ""}, PublishTime: published},
		},
	} {
		got, err := decode(http.Header{}, []byte(c.body), false)
		require.NoError(t, err, name)
		require.Equal(t, &c.want, got.message, name)
		require.Equal(t, "projects/p/subscriptions/topic.c", got.subscription, name)
	}
}

func TestDecodeMalformed(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing":         ``,
		"no JSON":         `hello`,
		"cut short":       `{"message": {"messageId": "1"`,
		"no message":      `{"subscription": "projects/p/subscriptions/topic.c"}`,
		"null":            `{"message": null}`,
		"message a text":  `{"message": "hello"}`,
		"no ID":           `{"message": {"data": "SGVsbG8="}}`,
		"no base64":       `{"message": {"messageId": "1", "data": "%"}}`,
		"bad padding":     `{"message": {"messageId": "1", "data": "SGVsbG8"}}`,
		"attribute":       `{"message": {"messageId": "1", "attributes": {"a": 1}}}`,
		"publish time":    `{"message": {"messageId": "1", "publishTime": "yesterday"}}`,
		"trailing":        `{"message": {"messageId": "1"}} {}`,
		"an event itself": `{"labour": 7}`,
	} {
		for _, unwrapped := range []bool{false, true} {
			_, err := decode(http.Header{"User-Agent": {"x"}}, []byte(body), unwrapped)
			require.Error(t, err, name)
		}
	}
}

// A publisher gave its message the attribute "x-goog-pubsub-delivery-attempt": each push of it was refused as malformed.
func TestDecodeHeadersThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, attempt := range []string{"often", "-1", "0"} {
		got, err := decode(http.Header{messageIDHeader: {"1"}, publishTimeHeader: {"yesterday"}, attemptHeader: {attempt}}, nil, true)
		require.NoError(t, err)
		require.Equal(t, &pubsub.Message{ID: "1", Attributes: map[string]string{}}, got.message)
	}
}

// unwrappedHeader is what Google documents for an unwrapped push, as Go's server gives it, with what comes with any
// request through Google's front end.
func unwrappedHeader(more http.Header) http.Header {
	header := http.Header{
		"Content-Length": {"5"}, "Content-Type": {"application/octet-stream"}, "User-Agent": {"APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)"},
		"Accept-Encoding": {"gzip, deflate, br"}, "Authorization": {"Bearer secret"}, "X-Forwarded-For": {"192.0.2.1"}, "Forwarded": {"for=192.0.2.1"},
		subscriptionHeader: {"projects/p/subscriptions/topic.c"}, messageIDHeader: {"1"}, publishTimeHeader: {"2026-02-26T19:13:55.749Z"},
		wire.IDAttribute: {"event-1"},
	}
	maps.Copy(header, more)
	return header
}

func TestDecodeUnwrapped(t *testing.T) {
	t.Parallel()
	third := 3
	header := unwrappedHeader(http.Header{"Name": {"value"}, "Empty": {""}, orderingKeyHeader: {"k"}, attemptHeader: {"3"}})
	want := &pubsub.Message{
		ID: "1", Data: []byte("\x00\xff{}"), OrderingKey: "k", PublishTime: published, DeliveryAttempt: &third,
		Attributes: map[string]string{"name": "value", "empty": "", wire.IDAttribute: "event-1"},
	}
	for _, unwrapped := range []bool{true, false} { // the subscription may have changed before the service has
		got, err := decode(header, want.Data, unwrapped)
		require.NoError(t, err)
		require.Equal(t, want, got.message)
		require.Equal(t, "projects/p/subscriptions/topic.c", got.subscription)
	}

	got, err := decode(unwrappedHeader(http.Header{emulatorKeyHeader: {"k"}}), nil, true)
	require.NoError(t, err)
	require.Equal(t, "k", got.message.OrderingKey)
	require.Nil(t, got.message.DeliveryAttempt)
}

// The content type of a structured CloudEvent was lost with the request's headers, and handlers got its envelope as their event.
func TestDecodeUnwrappedCloudEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header http.Header
		want   map[string]string
	}{
		"structured": {http.Header{"Content-Type": {"Application/CloudEvents+json; charset=UTF-8"}}, map[string]string{"content-type": "Application/CloudEvents+json; charset=UTF-8"}},
		"binary":     {http.Header{"Content-Type": {"text/plain"}, "Ce-Specversion": {"1.0"}}, map[string]string{"content-type": "text/plain", "ce-specversion": "1.0"}},
		"neither":    {http.Header{"Content-Type": {"text/plain"}}, map[string]string{}},
	} {
		got, err := decode(unwrappedHeader(c.header), nil, true)
		require.NoError(t, err)
		c.want[wire.IDAttribute] = "event-1"
		require.Equal(t, c.want, got.message.Attributes, name)
	}
}

// A mesh's sidecar adds headers, some too large for an attribute: whatever copied the metadata could not publish them.
func TestDecodeUnwrappedRepublish(t *testing.T) {
	t.Parallel()
	header := unwrappedHeader(http.Header{
		"Name": {strings.Repeat("v", wire.Limits.MetadataValueBytes)}, "X-Envoy-Attempt-Count": {"1"},
		"X-Mesh-Identity": {strings.Repeat("v", wire.Limits.MetadataValueBytes+1)}, "X-" + strings.Repeat("n", wire.Limits.MetadataKeyBytes): {"v"},
	})
	got, err := decode(header, nil, true)
	require.NoError(t, err)
	msg := wire.Unmarshal(got.message)
	require.NoError(t, wire.Check(msg))
	require.Equal(t, message.Metadata{"name": strings.Repeat("v", wire.Limits.MetadataValueBytes)}, msg.Metadata)
}

// A body that looks like an envelope is an event's own when the subscription is unwrapped; and the other way round the
// request of a subscription that is still wrapped is one.
func TestDecodeWhatLooksLikeBoth(t *testing.T) {
	t.Parallel()
	body := []byte(`{"message": {"messageId": "7", "data": "SGVsbG8="}}`)
	got, err := decode(unwrappedHeader(nil), body, true)
	require.NoError(t, err)
	require.Equal(t, body, got.message.Data)
	for _, c := range []struct {
		header    http.Header
		unwrapped bool
	}{{http.Header{}, true}, {unwrappedHeader(nil), false}} {
		got, err = decode(c.header, body, c.unwrapped)
		require.NoError(t, err)
		require.Equal(t, "Hello", string(got.message.Data))
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte("data"), "id", "k", "name", "value", []byte(`{"message": {"messageId": "1"}}`))
	f.Add([]byte{0, 255}, "1", "", "grüße", "\"\\\n<>&\u2028", []byte(`{"message": {"messageId": "1", "data": null, "attributes": null}}`))
	f.Fuzz(func(t *testing.T, data []byte, id, key, name, value string, body []byte) {
		// Whatever comes: no panic, and either a message or an error.
		for _, header := range []http.Header{{}, {messageIDHeader: {id}, publishTimeHeader: {value}, name: {value}}} {
			for _, unwrapped := range []bool{false, true} {
				got, err := decode(header, body, unwrapped)
				require.Equal(t, err == nil, got.message != nil)
			}
		}
		for _, s := range []string{id, key, name, value} {
			if !utf8.ValidString(s) {
				return // Pub/Sub takes no such text
			}
		}
		if id == "" {
			return
		}
		text, err := json.Marshal(map[string]any{
			"subscription": key,
			"message":      map[string]any{"data": data, "messageId": id, "orderingKey": key, "attributes": map[string]string{name: value}},
		})
		require.NoError(t, err)
		got, err := decode(http.Header{}, text, false)
		require.NoError(t, err)
		require.Equal(t, string(data), string(got.message.Data))
		require.Equal(t, pubsub.Message{ID: id, OrderingKey: key, Attributes: map[string]string{name: value}, Data: got.message.Data}, *got.message)
		require.Equal(t, key, got.subscription)
	})
}
