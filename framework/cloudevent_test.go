package framework_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
)

// peer is another program on the broker, by another client: it knows CloudEvents and nothing of Millrace.
type peer struct {
	prefix string // of the headers' names
	send   func(headers map[string]string, payload string)
	read   func() (headers map[string]string, payload []byte)
}

// newPeer reads the topic from now on.
func newPeer(w *world, broker, topic string, svc *framework.Service) peer {
	t, ctx := w.t, w.t.Context()
	switch broker {
	case "kafka":
		client, err := kgo.NewClient(kgo.SeedBrokers(devtest.Start(t, devstack.Kafka).KafkaBrokers()...), kgo.AllowAutoTopicCreation(),
			kgo.UnknownTopicRetries(-1), kgo.ConsumeTopics(topic))
		require.NoError(t, err)
		t.Cleanup(client.Close)
		var records []*kgo.Record
		return peer{"ce_", func(headers map[string]string, payload string) {
			r := &kgo.Record{Topic: topic, Value: []byte(payload)}
			for name, value := range headers {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
			}
			require.NoError(t, client.ProduceSync(ctx, r).FirstErr())
		}, func() (map[string]string, []byte) {
			polling, cancel := context.WithTimeout(ctx, 4*wait)
			defer cancel()
			for len(records) == 0 && polling.Err() == nil {
				records = client.PollFetches(polling).Records()
			}
			require.NotEmpty(t, records, "a record for the peer")
			r, headers := records[0], map[string]string{}
			records = records[1:]
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			return headers, r.Value
		}}
	case "pubsub":
		client, err := gcp.NewClient(ctx, w.project, emulated(devtest.Start(t, devstack.PubSub).PubSubHost())...)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		name := "projects/" + w.project + "/subscriptions/" + topic + "-peer"
		_, err = client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: "projects/" + w.project + "/topics/" + topic})
		require.NoError(t, err)
		_, err = client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: "projects/" + w.project + "/topics/" + topic})
		require.NoError(t, err)
		publisher := client.Publisher(topic)
		t.Cleanup(publisher.Stop)
		return peer{"ce-", func(headers map[string]string, payload string) {
			_, err := publisher.Publish(ctx, &gcp.Message{Data: []byte(payload), Attributes: headers}).Get(ctx)
			require.NoError(t, err)
		}, func() (map[string]string, []byte) {
			var m *pubsubpb.PubsubMessage
			w.eventually("a message for the peer", func() bool {
				pulled, err := client.SubscriptionAdminClient.Pull(ctx, &pubsubpb.PullRequest{Subscription: name, MaxMessages: 1})
				if err == nil && len(pulled.ReceivedMessages) == 1 {
					m = pulled.ReceivedMessages[0].Message
				}
				return m != nil
			})
			return m.Attributes, m.Data
		}}
	}
	sub, err := svc.Transport().Subscriber(transport.SubscriberConfig{Consumer: "peer"})
	require.NoError(t, err)
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	publisher, err := svc.Transport().Publisher()
	require.NoError(t, err)
	return peer{"ce_", func(headers map[string]string, payload string) {
		msg := message.NewMessage(outbox.NewID(), []byte(payload)) // of the attempt, not of the event
		msg.Metadata = headers
		require.NoError(t, publisher.Publish(topic, msg))
	}, func() (map[string]string, []byte) {
		m := next(t, messages)
		m.Ack()
		return m.Metadata, m.Payload
	}}
}

// parse reads what was on the wire by the SDK's reader, which knows HTTP's names.
func (p peer) parse(t *testing.T, headers map[string]string, payload []byte) *event.Event {
	t.Helper()
	header := http.Header{}
	for name, value := range headers {
		if attribute, ok := strings.CutPrefix(name, p.prefix); ok {
			name = "ce-" + attribute
		}
		header.Set(name, value)
	}
	e, err := binding.ToEvent(t.Context(), cehttp.NewMessage(header, io.NopCloser(bytes.NewReader(payload))))
	require.NoError(t, err)
	require.NoError(t, e.Validate())
	return e
}

// A service publishes CloudEvents that another library reads, and handles those of other programs in both modes, once and in their versions. Wrong ones
// are dead letters that name the attribute.
func TestCloudEventsOnEachBroker(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"memory", "pubsub", "kafka"} {
		for _, mode := range []cloudevent.Mode{cloudevent.Binary, cloudevent.Structured} {
			t.Run(broker+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, broker)
				name := w.topic("orders")
				cfg := w.config()
				cfg.CloudEvents = framework.CloudEvents{Topics: map[string]framework.TopicCloudEvents{name: {Mode: mode}}, Source: "/shop"}
				svc := w.service(cfg)
				orders := framework.Topic[orderPlacedV2](name, framework.Upcast(1, 2, toCents))
				type handled struct {
					order orderPlacedV2
					event framework.Event
				}
				got := make(chan handled, 10)
				p := newPeer(w, broker, name, svc)
				require.NoError(t, framework.Handle(svc, w.name("bill"), orders, func(ctx context.Context, e orderPlacedV2) error {
					got <- handled{e, framework.EventFrom(ctx)}
					return nil
				}))
				w.start(svc)

				traced := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{7}, SpanID: trace.SpanID{8}, TraceFlags: trace.FlagsSampled})
				w.publish(svc, func(ctx context.Context) {
					require.NoError(t, orders.Publish(trace.ContextWithSpanContext(ctx, traced), "key-1", orderPlacedV2{1, 100}))
				})
				own := next(t, got)
				assert.Equal(t, orderPlacedV2{1, 100}, own.order)
				assert.Equal(t, "orderPlaced 2 key-1", own.event.Type+" "+string(rune('0'+own.event.Version))+" "+own.event.Key)

				headers, payload := p.read()
				wire := p.parse(t, headers, payload)
				assert.Equal(t, mode == cloudevent.Binary, headers[p.prefix+"id"] != "")
				assert.Equal(t, mode == cloudevent.Structured, headers["content-type"] == "application/cloudevents+json")
				assert.Equal(t, own.event.ID, wire.ID())
				assert.Equal(t, "/shop", wire.Source())
				assert.Equal(t, "orderPlaced.v2", wire.Type())
				assert.Equal(t, "key-1", wire.Subject())
				assert.Equal(t, "key-1", wire.Extensions()["partitionkey"])
				assert.Contains(t, wire.Extensions()["traceparent"], traced.TraceID().String())
				assert.Equal(t, "application/json", wire.DataContentType())
				assert.JSONEq(t, `{"ID": 1, "Cents": 100}`, string(wire.Data()))
				assert.WithinDuration(t, time.Now(), wire.Time(), 10*time.Minute)

				binary := func(source, id string) map[string]string {
					return map[string]string{
						p.prefix + "specversion": "1.0", p.prefix + "id": id, p.prefix + "source": source, p.prefix + "type": "orderPlaced",
						p.prefix + "tenant": "7", "content-type": "application/json",
					}
				}
				structured := map[string]string{"content-type": "application/cloudevents+json; charset=UTF-8"}
				const second = `{"specversion": "1.0", "id": "1", "source": "/b", "type": "orderPlaced.v2", "tenant": 7, "data": {"ID": 3, "Cents": 5}}`
				for range 2 { // an event that its producer sends again
					p.send(binary("/a", "1"), `{"ID": 2, "Dollars": 3}`)
					p.send(structured, second)
				}
				byID := map[string]handled{}
				for range 2 {
					h := next(t, got)
					byID[h.event.ID] = h
				}
				require.Contains(t, byID, "/a 1")
				require.Contains(t, byID, "/b 1", "the same id of another source is another event")
				assert.Equal(t, orderPlacedV2{2, 300}, byID["/a 1"].order, "of version 1")
				assert.Equal(t, 1, byID["/a 1"].event.Version)
				assert.Equal(t, orderPlacedV2{3, 5}, byID["/b 1"].order)
				for _, h := range byID {
					assert.Equal(t, "7", h.event.Metadata.Get("ce_tenant"))
				}

				without := binary("/a", "2")
				delete(without, p.prefix+"id")
				p.send(without, `{"ID": 4, "Dollars": 3}`)
				other := binary("/a", "3")
				other[p.prefix+"specversion"] = "0.3"
				p.send(other, `{"ID": 5, "Dollars": 3}`)
				p.send(structured, `{"specversion": "1.0", "id": "4"`)
				p.send(structured, strings.Replace(second, `"type": "orderPlaced.v2"`, `"type": 7`, 1)) // a duplicate by its source and id
				p.send(structured, strings.Replace(strings.Replace(second, `"type": "orderPlaced.v2"`, `"type": 7`, 1), `"id": "1"`, `"id": "5"`, 1))
				for _, half := range []string{`\ud800`, `\udc00`} { // which encoding/json reads as the same text
					p.send(structured, strings.Replace(second, `"id": "1"`, `"id": "`+half+`"`, 1))
				}
				dead := w.dead(6)
				for _, want := range []string{`attribute "id" is "\ud800": want text without halves`, `attribute "id" is "\udc00": want`, `attribute "id" is missing or empty`, `attribute "specversion" is "0.3": want "1.0"`, "is no JSON object", `attribute "type" is 7: want a string`} {
					assert.Contains(t, strings.Join(dead, "\n"), want)
				}
				w.eventually("the duplicates", func() bool { return w.duplicates.Load() >= 3 })
				assert.Empty(t, got, "an event is handled once, and a wrong one never")
			})
		}
	}
}

// dead returns the errors of the dead letters, when there are as many.
func (w *world) dead(n int) (errs []string) {
	w.t.Helper()
	w.eventually("the dead letters", func() bool {
		dead, err := deadletter.List(w.t.Context(), w.pool, w.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
		require.NoError(w.t, err)
		errs = nil
		for _, d := range dead {
			errs = append(errs, d.Error)
		}
		return len(dead) == n
	})
	return errs
}

// Whatever the payload is, and however it is published: it arrives as it was. A plain handler gets the data too.
func TestCloudEventsOfEachPayload(t *testing.T) {
	t.Parallel()
	for _, mode := range []cloudevent.Mode{cloudevent.Binary, cloudevent.Structured} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "memory")
			cfg := w.config()
			cfg.CloudEvents.Mode = mode
			svc := w.service(cfg)
			numbers := framework.Topic[*wrapperspb.Int64Value](w.topic("numbers"))
			got := make(chan int64, 10)
			require.NoError(t, framework.Handle(svc, w.name("number"), numbers, func(_ context.Context, n *wrapperspb.Int64Value) error {
				got <- n.Value
				return nil
			}))
			plain, seen := make(chan *message.Message, 10), make(chan framework.Event, 10)
			svc.Router().AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					seen <- framework.EventFrom(msg.Context())
					return h(msg)
				}
			})
			require.NoError(t, svc.AddHandler(w.name("plain"), w.topic("plain"), func(msg *message.Message) error {
				plain <- msg
				forwarded := message.NewMessageWithContext(msg.Context(), outbox.NewID(), msg.Payload)
				forwarded.Metadata = msg.Metadata
				return svc.Outbox().Publish(w.topic("forwarded"), forwarded)
			}))
			require.NoError(t, svc.AddHandler(w.name("forwarded"), w.topic("forwarded"), func(msg *message.Message) error {
				plain <- msg
				return nil
			}))
			p := newPeer(w, "memory", w.topic("numbers"), svc)
			w.start(svc)
			for _, n := range []int64{300, 0} {
				w.publish(svc, func(ctx context.Context) { require.NoError(t, numbers.Publish(ctx, "", wrapperspb.Int64(n))) })
				assert.Equal(t, n, next(t, got))
				headers, payload := p.read()
				wire := p.parse(t, headers, payload)
				assert.Equal(t, "google.protobuf.Int64Value", wire.Type())
				assert.Equal(t, "/labour", wire.Source(), "the default")
				assert.Equal(t, "application/protobuf", wire.DataContentType())
				assert.Empty(t, wire.Subject())
				next(t, seen)
			}

			w.publish(svc, func(ctx context.Context) {
				msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte("\xff\x00"))
				msg.Metadata = message.Metadata{framework.TypeMetadata: "Bytes.v3", "ce_tenant": "7", "ce_dataschema": "https://shop.example/s", "plain": "x"}
				transport.SetKey(msg, "k")
				require.NoError(t, svc.Outbox().Publish(w.topic("plain"), msg))
				assert.Equal(t, "\xff\x00", string(msg.Payload), "the caller's message stays as it is")
				assert.Equal(t, "7", msg.Metadata["ce_tenant"])

				untyped := message.NewMessageWithContext(ctx, outbox.NewID(), []byte("{}"))
				err := svc.Outbox().Publish(w.topic("plain"), untyped)
				require.ErrorIs(t, err, outbox.ErrInvalidMessage)
				require.ErrorContains(t, err, "give its topic the option EventType, or the message the metadata millrace_type")
				untyped.Metadata = message.Metadata{framework.TypeMetadata: "T", "ce_a-b": "x"}
				assert.ErrorContains(t, svc.Outbox().Publish(w.topic("plain"), untyped), "a-b")
			})
			first, second := next(t, plain), next(t, plain)
			for _, msg := range []*message.Message{first, second} {
				assert.Equal(t, "\xff\x00", string(msg.Payload))
				for name, want := range map[string]string{
					"ce_tenant": "7", "ce_dataschema": "https://shop.example/s", "plain": "x", framework.TypeMetadata: "Bytes.v3", framework.VersionMetadata: "1",
					"content-type": "application/octet-stream", "ce_type": "Bytes.v3.v1", "ce_id": msg.UUID,
				} {
					assert.Equal(t, want, msg.Metadata[name], name)
				}
			}
			assert.NotEqual(t, first.UUID, second.UUID)
			for _, msg := range []*message.Message{first, second} {
				event := next(t, seen)
				assert.Equal(t, msg.UUID, event.ID, "also in middleware")
				assert.Equal(t, "Bytes.v3", event.Type)
			}
		})
	}
}

// A dead letter is kept as it came. When it is replayed, it is read again; when what it lacked was added, too.
func TestCloudEventsAreReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	broken := make(chan error, 10)
	got := make(chan string, 10)
	require.NoError(t, handle(svc, w.name("bill"), w.topic("orders"), func(ctx context.Context, e orderPlaced) error {
		select {
		case err := <-broken:
			return err
		default:
			got <- framework.EventFrom(ctx).ID
			return nil
		}
	}))
	p := newPeer(w, "memory", w.topic("orders"), svc)
	w.start(svc)
	broken <- errors.New("out of order")
	broken <- errors.New("out of order")
	structured := map[string]string{"content-type": "application/cloudevents+json"}
	const whole = `{"specversion": "1.0", "id": "1", "source": "/a", "type": "orderPlaced", "data": {"ID": 1}}`
	p.send(structured, whole)
	w.dead(1)
	replay := func() {
		_, err := deadletter.Replay(t.Context(), w.pool, w.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
		require.NoError(t, err)
	}
	replay()
	assert.Equal(t, "/a 1", next(t, got))

	p.send(structured, strings.Replace(whole, `"id": "1", `, "", 1))
	w.dead(1)
	dead, err := deadletter.List(t.Context(), w.pool, w.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
	require.NoError(t, err)
	require.NoError(t, deadletter.Edit(t.Context(), w.pool, w.schema, dead[0].EventID, "", deadletter.Change{Payload: []byte(strings.Replace(whole, `"1", "s`, `"2", "s`, 1))}, deadletter.By{Actor: "test", Note: "its id"}))
	replay()
	assert.Equal(t, "/a 2", next(t, got))
	w.dead(0)
}

// With Kafka's transactions too.
func TestCloudEventsInKafkaTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	w.drivers = []transport.Driver{kafka.NewDriver(kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Delivery: kafka.Transactional})}
	cfg := w.config()
	cfg.CloudEvents.Topics = map[string]framework.TopicCloudEvents{w.topic("doubles"): {Mode: cloudevent.Binary}}
	svc := w.service(cfg)
	require.NoError(t, handle(svc, w.name("double"), w.topic("numbers"), func(ctx context.Context, n int) error {
		return framework.Topic[int](w.topic("doubles")).Publish(ctx, "k", 2*n)
	}))
	in, out := newPeer(w, "kafka", w.topic("numbers"), svc), newPeer(w, "kafka", w.topic("doubles"), svc)
	letters := newPeer(w, "kafka", transport.DeadLetterTopic(w.topic("numbers"), "labour."+w.name("double")), svc)
	w.start(svc)
	headers := map[string]string{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/a", "ce_type": "int", "content-type": "application/json"}
	delete(headers, "ce_type")
	in.send(headers, "3")
	headers["ce_type"] = "int"
	for range 2 { // without a claim nothing recognizes a duplicate
		in.send(headers, "4")
		wireHeaders, payload := out.read()
		assert.Equal(t, "8", string(out.parse(t, wireHeaders, payload).Data()))
	}
	letter, payload := letters.read()
	assert.Equal(t, "3", string(payload))
	assert.Contains(t, letter[transport.DeadErrorMetadata], `attribute "type" is missing`)
}

// The SDK's sender posts events to a service, in both modes.
func TestCloudEventsOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.CloudEvents.Topics = map[string]framework.TopicCloudEvents{w.topic("structured"): {Mode: cloudevent.Structured}}
	svc := w.service(cfg)
	got := make(chan framework.Event, 10)
	for _, name := range []string{"binary", "structured"} {
		svc.HTTP().Handle("POST /"+name, svc.AcceptCloudEvents(w.topic(name)))
		require.NoError(t, handle(svc, w.name(name), w.topic(name), func(ctx context.Context, e orderPlaced) error {
			got <- framework.EventFrom(ctx)
			return pgtx.Queue(ctx, `insert into `+w.schema+`.notifications values ($1, $2)`, e.ID, framework.EventFrom(ctx).ID)
		}))
	}
	w.start(svc)
	post := func(path string, change func(http.Header), contentType, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+svc.Address()+path, strings.NewReader(body))
		require.NoError(t, err)
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		if change != nil {
			change(req.Header)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		require.NoError(t, err)
		answer, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode, string(answer)
	}
	for _, path := range []string{"/binary", "/structured"} {
		for i, with := range []func(context.Context) context.Context{binding.WithForceBinary, binding.WithForceStructured} {
			e := event.New()
			e.SetID([]string{"1", "2"}[i])
			e.SetSource("/shop")
			e.SetType("orderPlaced")
			e.SetSubject("key")
			require.NoError(t, e.SetData("application/json", orderPlaced{ID: 7, Dollars: 1}))
			for range 2 { // a client that has not heard the answer
				sent := httptest.NewRequest(http.MethodPost, "/", nil)
				require.NoError(t, cehttp.WriteRequest(with(t.Context()), binding.ToMessage(&e), sent))
				body, err := io.ReadAll(sent.Body)
				require.NoError(t, err)
				code, answer := post(path, func(h http.Header) {
					for name := range sent.Header {
						h.Set(name, sent.Header.Get(name))
					}
				}, "", string(body))
				require.Equal(t, http.StatusAccepted, code, answer)
			}
			event := next(t, got)
			assert.Equal(t, "/shop "+e.ID(), event.ID)
			assert.Equal(t, "key", event.Key)
			assert.Equal(t, "/shop", event.Metadata.Get("ce_source"))
		}
	}
	w.eventually("the duplicates", func() bool { return w.duplicates.Load() >= 4 })
	assert.Equal(t, 4, w.get(`select count(*) from {s}.notifications`))

	const structured = "application/cloudevents+json"
	for _, source := range []string{"/shop#", "/sh%C3%B6p", "/sh%c3%b6p", "/shöp", "Https://shop.example"} {
		for _, path := range []string{"/binary", "/structured"} {
			code, answer := post(path, nil, structured, `{"specversion": "1.0", "id": "1", "source": "`+source+`", "type": "orderPlaced", "data": {"ID": 8}}`)
			require.Equal(t, http.StatusAccepted, code, answer)
			event := next(t, got)
			assert.Equal(t, source+" 1", event.ID)
			assert.Equal(t, source, event.Metadata.Get("ce_source"))
		}
	}

	for header, values := range map[string][]string{
		"Ce-Id": {"%ff", "%00"}, "Ce-Source": {"/%ff", "/%00"}, "Ce-Type": {"%ff", "%00"}, "Ce-Subject": {"%ff", "%00"}, "Ce-Tenant": {"%ff", "%00"},
		"Content-Type": {"a/b; c=\"\xff\""}, "Ce-Time": {"9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"},
	} {
		for _, value := range values {
			for _, path := range []string{"/binary", "/structured"} {
				code, answer := post(path, func(h http.Header) {
					for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "3", "Ce-Source": "/s", "Ce-Type": "orderPlaced"} {
						h.Set(name, value)
					}
					h.Set(header, value)
				}, "application/json", `{"ID": 9}`)
				assert.Equal(t, http.StatusBadRequest, code, "%s %s %q", path, header, value)
				name := strings.Replace(strings.TrimPrefix(strings.ToLower(header), "ce-"), "content-type", "datacontenttype", 1)
				assert.Contains(t, answer, `attribute "`+name+`"`)
			}
		}
	}
	for _, wrong := range []struct {
		contentType, body string
		code              int
		want              string
	}{
		{"application/json", "{}", http.StatusUnsupportedMediaType, "not a CloudEvent"},
		{structured, `{"specversion": "1.0", "source": "/s", "type": "t"}`, http.StatusBadRequest, `attribute "id" is missing`},
		{structured, `{`, http.StatusBadRequest, "no JSON object"},
		{structured, `{"specversion": "1.0", "id": "\udc00", "source": "/s", "type": "t"}`, http.StatusBadRequest, `attribute "id" is "\udc00": want text`},
		{structured, `{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": "9999-12-31T23:59:59-01:00"}`, http.StatusBadRequest, `attribute "time" is "10000-01-01T00:59:59Z": want a time`},
		{structured, `{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "` + strings.Repeat("x", 1025) + `"}`, http.StatusBadRequest, "key length in bytes is 1025"},
		{structured, strings.Repeat(" ", cmp.Or(svc.Transport().Features().Limits.MessageBytes, transport.DefaultLimits.MessageBytes)+1), http.StatusRequestEntityTooLarge, "larger than"},
	} {
		code, answer := post("/binary", nil, wrong.contentType, wrong.body)
		assert.Equal(t, wrong.code, code)
		assert.Contains(t, answer, wrong.want)
	}
	assert.Empty(t, got)
	w.dead(0) // what was accepted can be handled
}

// What is wrong with the configuration is told with its field.
func TestCloudEventsConfiguration(t *testing.T) {
	t.Parallel()
	cfg, err := framework.Parse("millrace.yaml", []byte("service: shop\nbroker: memory\ncloud_events: {mode: binary, source: \"https://shop.example\", topics: {orders.placed: {mode: structured}, orders.paid: {mode: off}}}\n"),
		nil, []transport.Driver{memory.Driver})
	require.NoError(t, err)
	assert.Equal(t, framework.CloudEvents{
		Mode: cloudevent.Binary, Source: "https://shop.example",
		Topics: map[string]framework.TopicCloudEvents{"orders.placed": {Mode: cloudevent.Structured}, "orders.paid": {}},
	}, cfg.CloudEvents)
	cfg.CloudEvents = framework.CloudEvents{Mode: 7, Topics: map[string]framework.TopicCloudEvents{"t": {Mode: -1}}, Source: "a b"}
	err = cfg.WithDefaults().Validate()
	assert.ErrorContains(t, err, "Config.CloudEvents.Mode is Mode(7): want Off, Binary or Structured")
	assert.ErrorContains(t, err, `Config.CloudEvents.Topics["t"].Mode is Mode(-1)`)
	assert.ErrorContains(t, err, `Config.CloudEvents.Source is "a b": want a URI or a reference to one`)
}
