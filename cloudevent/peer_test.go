package cloudevent_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cloudevent"
)

// samples are events with everything that a CloudEvent can have.
func samples(t testing.TB) map[string]event.Event {
	t.Helper()
	whole := func(contentType string, data []byte) event.Event {
		e := event.New()
		e.SetID("1-of-2")
		e.SetSource("https://shop.example/orders?x=1#y")
		e.SetType("OrderPlaced.v2")
		e.SetSubject("order-1")
		e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC))
		e.SetDataSchema("https://shop.example/schema/order.json")
		e.SetExtension("partitionkey", "order-1")
		e.SetExtension("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		e.SetExtension("number", 7)
		e.SetExtension("flag", true)
		require.NoError(t, e.SetData(contentType, data))
		return e
	}
	least := event.New()
	least.SetID("1")
	least.SetSource("/s")
	least.SetType("t")
	return map[string]event.Event{
		"JSON":     whole("application/json", []byte(`{"a": [1, "ü<"]}`)),
		"charset":  whole("application/json; charset=utf-8", []byte(`"text"`)),
		"text":     whole("text/plain", []byte("a \"b\" ü\n")),
		"protobuf": whole("application/protobuf", []byte{0, 0xff, '"', 8}),
		"least":    least,
	}
}

// assertSame compares two events. In binary mode numbers and booleans become strings.
func assertSame(t *testing.T, want, got event.Event, mode cloudevent.Mode) {
	t.Helper()
	assert.Equal(t, want.ID(), got.ID())
	assert.Equal(t, want.Source(), got.Source())
	assert.Equal(t, want.Type(), got.Type())
	assert.Equal(t, want.Subject(), got.Subject())
	assert.Equal(t, want.Time().UTC(), got.Time().UTC())
	assert.Equal(t, want.DataSchema(), got.DataSchema())
	assert.Equal(t, want.DataContentType(), got.DataContentType())
	if want.DataMediaType() == "application/json" && len(want.Data()) > 0 {
		assert.JSONEq(t, string(want.Data()), string(got.Data()))
	} else {
		assert.Equal(t, string(want.Data()), string(got.Data()))
	}
	extensions := want.Extensions()
	if mode == cloudevent.Binary && len(extensions) > 0 {
		extensions = map[string]any{}
		for name, value := range want.Extensions() {
			extensions[name] = value
		}
		extensions["number"], extensions["flag"] = "7", "true"
	}
	assert.Equal(t, extensions, got.Extensions())
}

// The SDK's receiver and sender read and write the same over HTTP.
func TestPeerOverHTTP(t *testing.T) {
	t.Parallel()
	for name, e := range samples(t) {
		for _, mode := range []cloudevent.Mode{cloudevent.Binary, cloudevent.Structured} {
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				got := make(chan event.Event, 1)
				peer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					received := cehttp.NewMessageFromHttpRequest(r)
					read, err := binding.ToEvent(r.Context(), received)
					assert.NoError(t, err)
					assert.Equal(t, mode == cloudevent.Structured, received.ReadEncoding() == binding.EncodingStructured)
					got <- *read
				}))
				defer peer.Close()
				header, body, err := cloudevent.ToHTTP(e, mode)
				require.NoError(t, err)
				request, err := http.NewRequest(http.MethodPost, peer.URL, bytes.NewReader(body))
				require.NoError(t, err)
				request.Header = header
				answer, err := peer.Client().Do(request)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				assertSame(t, e, <-got, mode)

				ctx := binding.WithForceBinary(context.Background())
				if mode == cloudevent.Structured {
					ctx = binding.WithForceStructured(context.Background())
				}
				sent := httptest.NewRequest(http.MethodPost, "/", nil)
				require.NoError(t, cehttp.WriteRequest(ctx, binding.ToMessage(&e), sent))
				sentBody, err := io.ReadAll(sent.Body)
				require.NoError(t, err)
				read, err := cloudevent.FromHTTP(sent.Header, sentBody)
				require.NoError(t, err)
				assertSame(t, e, read, mode)
			})
		}
	}
}

// The SDK writes such data as a string, which the specification does not.
func TestDataOfOtherJSON(t *testing.T) {
	t.Parallel()
	e := samples(t)["JSON"]
	e.SetDataContentType("application/vnd.x+json")
	header, body, err := cloudevent.ToHTTP(e, cloudevent.Structured)
	require.NoError(t, err)
	read, err := binding.ToEvent(t.Context(), cehttp.NewMessage(header, io.NopCloser(bytes.NewReader(body))))
	require.NoError(t, err)
	assert.JSONEq(t, string(e.Data()), string(read.Data()))

	ours, err := cloudevent.FromHTTP(http.Header{"Content-Type": {"application/cloudevents+json"}},
		[]byte(`{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": "application/vnd.x+json", "data": {"a": 1}}`))
	require.NoError(t, err)
	assert.JSONEq(t, `{"a": 1}`, string(ours.Data()))
}

// What no header can carry arrives all the same.
func TestHeadersCarryAllText(t *testing.T) {
	t.Parallel()
	e := samples(t)["JSON"]
	for _, subject := range []string{"50%", "%41", "a b", `"quoted"`, `\`, "Grüße 🚲", "line\nfeed", "~!"} {
		e.SetSubject(subject)
		header, body, err := cloudevent.ToHTTP(e, cloudevent.Binary)
		require.NoError(t, err)
		assert.Regexp(t, `^[!-~]+$`, header.Get("ce-subject"))
		read, err := cloudevent.FromHTTP(header, body)
		require.NoError(t, err)
		assert.Equal(t, subject, read.Subject())
	}
	for written, want := range map[string]string{`"a \"b\" c"`: `a "b" c`, "50%": "50%", "%zz": "%zz", "%e2%82%ac": "€", `"`: `"`} {
		read, err := cloudevent.FromHTTP(http.Header{
			"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}, "Ce-Subject": {written},
		}, nil)
		require.NoError(t, err)
		assert.Equal(t, want, read.Subject())
	}
}
