package cloudevent_test

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cloudevent"
)

// These are the features of github.com/cloudevents/conformance at 7a8ee0a: kafka-protocol-binding.feature and
// http-protocol-binding.feature.

const (
	helloWorld = `{
    "message": "Hello World!"
}
`
	helloWorldStructured = `{
    "specversion": "1.0",
    "type": "com.example.someevent",
    "time": "2018-04-05T03:56:24Z",
    "id": "1234-1234-1234",
    "source": "/mycontext/subcontext",
    "datacontenttype": "application/json",
    "data": {
        "message": "Hello World!"
    }
}
`
)

// assertHelloWorld is the Then of every scenario.
func assertHelloWorld(t *testing.T, e event.Event, err error, contentType string) {
	t.Helper()
	require.NoError(t, err)
	assert.Equal(t, "1234-1234-1234", e.ID())
	assert.Equal(t, "1.0", e.SpecVersion())
	assert.Equal(t, "com.example.someevent", e.Type())
	assert.Equal(t, "/mycontext/subcontext", e.Source())
	assert.Equal(t, time.Date(2018, 4, 5, 3, 56, 24, 0, time.UTC), e.Time().UTC())
	assert.Equal(t, contentType, e.DataContentType())
	assert.JSONEq(t, `{"message": "Hello World!"}`, string(e.Data()))
	assert.Empty(t, e.Extensions())
}

func TestConformanceOfKafka(t *testing.T) {
	t.Parallel()
	scenarios := map[string]struct {
		headers message.Metadata
		payload string
	}{
		"Binary content mode": {message.Metadata{
			"ce_specversion": "1.0",
			"ce_id":          "1234-1234-1234",
			"ce_type":        "com.example.someevent",
			"ce_source":      "/mycontext/subcontext",
			"ce_time":        "2018-04-05T03:56:24Z",
			"content-type":   "application/json",
		}, `{"message": "Hello World!"}`},
		"Structured content mode (application/cloudevents+json)":                {message.Metadata{"content-type": "application/cloudevents+json"}, helloWorldStructured},
		"Structured content mode (application/cloudevents+json; charset=utf-8)": {message.Metadata{"content-type": "application/cloudevents+json; charset=utf-8"}, helloWorldStructured},
	}
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("", []byte(s.payload))
			msg.Metadata = s.headers
			e, err := cloudevent.FromMessage(msg)
			assertHelloWorld(t, e, err, "application/json")
		})
	}
}

func TestConformanceOfHTTP(t *testing.T) {
	t.Parallel()
	binary := func(contentType string) string {
		return "ce-specversion: 1.0\r\nce-type: com.example.someevent\r\nce-time: 2018-04-05T03:56:24Z\r\nce-id: 1234-1234-1234\r\n" +
			"ce-source: /mycontext/subcontext\r\nContent-Type: " + contentType
	}
	scenarios := map[string]struct{ headers, body, contentType string }{
		"Binary content mode (application/json)":                                {binary("application/json"), helloWorld, "application/json"},
		"Binary content mode (application/json; charset=utf-8)":                 {binary("application/json; charset=utf-8"), helloWorld, "application/json; charset=utf-8"},
		"Structured content mode (application/cloudevents+json)":                {"Content-Type: application/cloudevents+json", helloWorldStructured, "application/json"},
		"Structured content mode (application/cloudevents+json; charset=utf-8)": {"Content-Type: application/cloudevents+json; charset=utf-8", helloWorldStructured, "application/json"},
	}
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			request, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST /someresource HTTP/1.1\r\nHost: example.com\r\n" +
				s.headers + "\r\nContent-Length: " + strconv.Itoa(len(s.body)) + "\r\n\r\n" + s.body)))
			require.NoError(t, err)
			body, err := io.ReadAll(request.Body)
			require.NoError(t, err)
			e, err := cloudevent.FromHTTP(request.Header, body)
			assertHelloWorld(t, e, err, s.contentType)
		})
	}
}
