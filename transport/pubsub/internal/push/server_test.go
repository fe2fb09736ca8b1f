package push

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// pushBench is a server without Pub/Sub.
type pushBench struct {
	t        *testing.T
	server   *Server
	consumer Consumer // "c"
	observer *receive.Observer
	google   *signer
	log      *slog.Logger
	logged   bytes.Buffer
	metrics  *sdkmetric.ManualReader
}

func newPushBench(t *testing.T, push *setting.Push) *pushBench {
	t.Helper()
	b := &pushBench{t: t, consumer: Consumer{push, setting.DefaultAckDeadline}, google: newSigner(t), metrics: sdkmetric.NewManualReader()}
	b.log = slog.New(slog.NewTextHandler(&b.logged, nil))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.metrics))
	var err error
	b.observer, err = receive.NewObserver(provider)
	require.NoError(t, err)
	b.server, err = New(t.Context(), Config{
		Project:  "p",
		MaxBytes: maxBytes,
		Consumer: func(consumer string) Consumer {
			if consumer == "c" {
				return b.consumer
			}
			return Consumer{AckDeadline: setting.DefaultAckDeadline}
		},
		All:           []*setting.Push{push},
		MeterProvider: provider,
		Log:           b.log,
	})
	require.NoError(t, err)
	b.server.auth, err = newAuthenticator(t.Context(), b.google)
	require.NoError(t, err)
	return b
}

// maxBytes is what the bodies of a bench's requests may have together.
const maxBytes = 64 << 20

var openPush = &setting.Push{Endpoint: "http://service.example/push"}

type valueKey struct{}

// subscribe returns the messages of topic.c, and what closes the subscription and waits for it.
func (b *pushBench) subscribe(config transport.SubscriberConfig) (<-chan *message.Message, func()) {
	return b.subscribeTo("topic", config)
}

func (b *pushBench) subscribeTo(topic string, config transport.SubscriberConfig) (<-chan *message.Message, func()) {
	config = config.WithDefaults()
	sub := receive.New(receive.Shared{Observer: b.observer}, receive.Config{
		Subscription: resource.Subscription{Topic: topic, Consumer: "c", Subscription: setting.Subscription{
			AckDeadline: b.consumer.AckDeadline, Ordered: config.Ordered, Push: b.consumer.Push,
		}},
		Name:         "projects/p/subscriptions/" + topic + ".c",
		Concurrency:  config.Concurrency,
		DrainTimeout: transport.DefaultDrainTimeout,
		Log:          b.log,
	})
	stop := make(chan struct{})
	ready := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		sub.Run(context.WithValue(b.t.Context(), valueKey{}, "of Subscribe"), stop, func(ctx, messages context.Context) {
			b.server.Take(ctx, messages, sub, ready)
		})
	})
	closing := sync.OnceFunc(func() { close(stop) })
	closeAndWait := func() { closing(); running.Wait() }
	b.t.Cleanup(closeAndWait)
	<-ready
	return sub.Messages(), closeAndWait
}

// handle runs handler for each message, each on its own goroutine.
func handle(messages <-chan *message.Message, handler func(*message.Message)) {
	go func() {
		for msg := range messages {
			go handler(msg)
		}
	}()
}

func wrapped(id, key string) string {
	return fmt.Sprintf(`{"message": {"data": "SGVsbG8=", "messageId": %q, "orderingKey": %q, "attributes": {%q: %q}}, "subscription": "projects/p/subscriptions/topic.c", "deliveryAttempt": 3}`,
		id, key, wire.IDAttribute, "event-"+id)
}

func (b *pushBench) request(body string) *http.Request {
	return httptest.NewRequestWithContext(b.t.Context(), http.MethodPost, "/push/topic.c", strings.NewReader(body))
}

func (b *pushBench) serve(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	return w
}

// push sends a message in the background; the answer comes on the channel.
func (b *pushBench) push(id, key string) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- b.serve(b.request(wrapped(id, key))) }()
	return answer
}

// count is the metric's value for the outcome.
func (b *pushBench) count(outcome string) (n int64) {
	b.t.Helper()
	for _, point := range b.points() {
		if v, _ := point.Attributes.Value("millrace.outcome"); v.AsString() == outcome {
			n += point.Value
		}
	}
	return n
}

// points are those of the push requests' metric.
func (b *pushBench) points() []metricdata.DataPoint[int64] {
	b.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(b.t, b.metrics.Collect(context.Background(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "millrace.pubsub.push_requests" {
			return m.Data.(metricdata.Sum[int64]).DataPoints
		}
	}
	return nil
}

// countOfNobody is count for what has no consumer.
func (b *pushBench) countOfNobody(outcome string) (n int64) {
	for _, point := range b.points() {
		v, _ := point.Attributes.Value("millrace.outcome")
		if point.Attributes.HasValue("millrace.consumer") || v.AsString() != outcome {
			continue
		}
		n += point.Value
	}
	return n
}

// bubble runs the test under a clock that stands still while something can run.
func bubble(t *testing.T, run func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, run)
}

func TestPushAcksAndNacks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{})
		handle(messages, func(msg *message.Message) {
			require.Equal(t, 3, transport.DeliveryFrom(msg.Context()).Attempt())
			require.Equal(t, "Hello", string(msg.Payload))
			if msg.UUID == "event-good" {
				msg.Ack()
			} else {
				msg.Nack()
			}
		})
		w := <-b.push("good", "k")
		require.Equal(t, http.StatusNoContent, w.Code)
		require.Empty(t, w.Body.String())
		require.True(t, w.Flushed)
		began := time.Now()
		w = <-b.push("bad", "k")
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Zero(t, time.Since(began), "Pub/Sub waits, not we")
		require.EqualValues(t, 1, b.count(outcomeAcked))
		require.EqualValues(t, 1, b.count(outcomeNacked))

		// No event's ID: it is for the layer above to decide.
		w = b.serve(b.request(`{"message": {"data": "SGVsbG8=", "messageId": "1"}, "deliveryAttempt": 3}`))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.EqualValues(t, 2, b.count(outcomeNacked))
		require.Empty(t, b.logged.String())
	})
}

func TestPushRefusals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, &setting.Push{Endpoint: pushAudience, ServiceAccount: pushAccount, Audience: pushAudience})
		token := "Bearer " + b.google.token(t, nil)
		send := func(method, path, authorization, body string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			return b.serve(r)
		}
		w := send(http.MethodPost, "/push/topic.c", token, wrapped("1", ""))
		require.Equal(t, http.StatusServiceUnavailable, w.Code, "a service that starts is no misconfigured sender")
		require.EqualValues(t, 1, b.count(outcomeClosing))
		require.Empty(t, b.logged.String())
		messages, closeAndWait := b.subscribe(transport.SubscriberConfig{})
		handle(messages, func(msg *message.Message) { msg.Ack() })
		for name, c := range map[string]struct {
			method, path, authorization, body string
			status                            int
			outcome, reason                   string
		}{
			"good":            {"POST", "/push/topic.c", token, wrapped("1", ""), 204, outcomeAcked, ""},
			"prefix stripped": {"POST", "/topic.c", token, wrapped("1", ""), 204, outcomeAcked, ""},
			"method":          {"GET", "/push/topic.c", token, "", 405, outcomeMethod, "want POST"},
			"other topic":     {"POST", "/push/other.c", token, wrapped("1", ""), 503, outcomeClosing, "nobody is subscribed here"},
			"other project":   {"POST", "/push/topic.c", token, strings.ReplaceAll(wrapped("1", ""), "projects/p/", "projects/q/"), 400, outcomeMalformed, "no push of this subscription"},
			"short name":      {"POST", "/push/topic.c", token, strings.ReplaceAll(wrapped("1", ""), "projects/p/subscriptions/", ""), 400, outcomeMalformed, "no push of this subscription"},
			"longer name":     {"POST", "/push/topic.c", token, strings.ReplaceAll(wrapped("1", ""), "projects/p/", "x/projects/p/"), 400, outcomeMalformed, "no push of this subscription"},
			"a pull one":      {"POST", "/push/topic.pulls", token, wrapped("1", ""), 404, outcomeUnknown, "no consumer here"},
			"no subscription": {"POST", "/push", token, wrapped("1", ""), 404, outcomeUnknown, "no consumer here"},
			"no token":        {"POST", "/push/topic.c", "", wrapped("1", ""), 401, outcomeUnauthorized, "unauthorized"},
			"other account":   {"POST", "/push/topic.c", "Bearer " + b.google.token(t, map[string]any{"email": "other@x"}), wrapped("1", ""), 403, outcomeForbidden, "forbidden"},
			"no envelope":     {"POST", "/push/topic.c", token, "hello", 400, outcomeMalformed, "no push of this subscription"},
			"other's message": {"POST", "/push/topic.c", token, strings.ReplaceAll(wrapped("1", ""), "topic.c", "topic.d"), 400, outcomeMalformed, "no push of this subscription"},
			"too large":       {"POST", "/push/topic.c", token, strings.Repeat(" ", MaxBodyBytes+1), 413, outcomeTooLarge, "16777216"},
		} {
			before := b.count(c.outcome)
			w := send(c.method, c.path, c.authorization, c.body)
			require.Equal(t, c.status, w.Code, "%s: %s", name, w.Body)
			require.Contains(t, w.Body.String(), c.reason, name)
			require.Equal(t, before+1, b.count(c.outcome), name)
			require.Equal(t, c.status == http.StatusMethodNotAllowed, w.Header().Get("Allow") == http.MethodPost, name)
		}
		require.Contains(t, b.logged.String(), `level=WARN msg="push request refused" subscription=topic.c status=400`)
		require.NotContains(t, b.logged.String(), strings.TrimPrefix(token, "Bearer "))
		closeAndWait()
		require.Equal(t, http.StatusServiceUnavailable, send(http.MethodPost, "/push/topic.c", token, wrapped("1", "")).Code, "nobody is subscribed")
		b.google.answer = func() (*http.Response, error) { return nil, context.DeadlineExceeded }
		<-time.After(2 * time.Hour) // the certificates are stale then
		require.Equal(t, http.StatusServiceUnavailable, send(http.MethodPost, "/push/topic.c", "Bearer "+b.google.token(t, nil), wrapped("1", "")).Code)
		require.EqualValues(t, 1, b.count(outcomeNoCertificates))
	})
}

// A sender that is set up wrongly repeats itself for days.
func TestPushWarningsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{})
		handle(messages, func(msg *message.Message) { msg.Ack() })
		for range 50 {
			b.serve(b.request("hello"))
		}
		require.Equal(t, 1, strings.Count(b.logged.String(), "\n"))
		<-time.After(warnEach)
		b.serve(b.request("hello"))
		require.Equal(t, 2, strings.Count(b.logged.String(), "\n"))
		require.Contains(t, b.logged.String(), "not_logged=49")
		require.EqualValues(t, 51, b.count(outcomeMalformed))
	})
}

// A handler gets a message only while a quarter of the ack deadline of 20 s remains.
func TestPushBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
		first := b.push("1", "")
		running := <-messages
		began := time.Now()
		w := <-b.push("2", "")
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, 15*time.Second, time.Since(began))

		third := b.push("3", "")
		synctest.Wait()
		running.Ack()
		require.Equal(t, http.StatusNoContent, (<-first).Code)
		msg := <-messages
		require.Equal(t, "event-3", msg.UUID)
		msg.Ack()
		require.Equal(t, http.StatusNoContent, (<-third).Code)

		// Nobody reads the channel: that is no handler either.
		began = time.Now()
		require.Equal(t, http.StatusTooManyRequests, (<-b.push("4", "")).Code)
		require.Equal(t, 15*time.Second, time.Since(began))

		// What waits takes memory, so it is bounded.
		var waiting []<-chan *httptest.ResponseRecorder
		for range 1 + maxWaiting {
			waiting = append(waiting, b.push("5", ""))
		}
		synctest.Wait()
		began = time.Now()
		require.Equal(t, http.StatusTooManyRequests, (<-b.push("6", "")).Code)
		require.Zero(t, time.Since(began))
		require.Zero(t, b.countOfNobody(outcomeBusy))
		for _, answer := range waiting {
			require.Equal(t, http.StatusTooManyRequests, (<-answer).Code)
		}
		synctest.Wait()
		require.Zero(t, b.server.targets["topic.c"].requests)
	})
}

// What comes before the handler takes time, too: Pub/Sub's deadline began with the request.
func TestPushCountsTheTimeBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, &setting.Push{Endpoint: pushAudience, ServiceAccount: pushAccount, Audience: pushAudience})
		b.subscribe(transport.SubscriberConfig{})
		b.google.answer = func() (*http.Response, error) {
			<-time.After(9 * time.Second)
			b.google.answer = nil
			return b.google.RoundTrip(nil)
		}
		r := b.request(wrapped("1", ""))
		r.Header.Set("Authorization", "Bearer "+b.google.token(t, nil))
		began := time.Now()
		require.Equal(t, http.StatusTooManyRequests, b.serve(r).Code)
		require.Equal(t, 15*time.Second, time.Since(began))
	})
}

// A body that came too slowly was handled or not by chance, though handlers were free: beyond the ack deadline, too.
func TestPushSlowBody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{})
		handle(messages, func(msg *message.Message) { msg.Ack() })
		for range 20 {
			body, sender := io.Pipe()
			go func() {
				<-time.After(16 * time.Second)
				_, err := io.WriteString(sender, wrapped("1", "k"))
				_ = sender.CloseWithError(err)
			}()
			w := b.serve(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/push/topic.c", body))
			require.Equal(t, http.StatusTooManyRequests, w.Code)
		}
	})
}

func TestPushRetryInPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		var wish time.Duration
		deliveries := 0
		messages, closeAndWait := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
		handle(messages, func(msg *message.Message) {
			deliveries++
			require.Equal(t, 3, transport.DeliveryFrom(msg.Context()).Attempt(), "contention is no attempt")
			transport.DeliveryFrom(msg.Context()).RetryAfter(wish)
			msg.Nack()
		})
		for _, c := range []struct {
			wish       time.Duration
			deliveries int
			held       time.Duration
			retryAfter string
		}{
			{6 * time.Second, 3, 12 * time.Second, "6"},
			{14 * time.Second, 2, 14 * time.Second, "14"},
			{15*time.Second + 1, 1, 0, "16"},
			{time.Hour, 1, 0, "3600"},
		} {
			deliveries, wish = 0, c.wish
			began := time.Now()
			w := <-b.push("1", "")
			require.Equal(t, http.StatusServiceUnavailable, w.Code)
			require.Equal(t, c.held, time.Since(began), c.wish)
			require.Equal(t, c.deliveries, deliveries, c.wish)
			require.Equal(t, c.retryAfter, w.Header().Get("Retry-After"))
		}
		// A subscription that closes holds nothing back from those that go on.
		wish = 10 * time.Second
		answer := b.push("1", "")
		synctest.Wait()
		began := time.Now()
		closeAndWait()
		require.Equal(t, http.StatusServiceUnavailable, (<-answer).Code)
		require.Zero(t, time.Since(began))
	})
}

// The sender has gone, as Pub/Sub does at the ack deadline: what has begun is finished, what waits is not begun.
func TestPushSenderGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{Concurrency: 1})
		type requestKey struct{}
		sender, hangUp := context.WithCancel(context.WithValue(t.Context(), requestKey{}, "of the request"))
		answers := make(chan int, 2)
		push := func(id string) {
			answers <- b.serve(b.request(wrapped(id, "")).WithContext(sender)).Code
		}
		go push("1")
		msg := <-messages
		require.Equal(t, "of the request", msg.Context().Value(requestKey{}))
		require.Equal(t, "of Subscribe", msg.Context().Value(valueKey{}))
		go push("2")
		synctest.Wait()
		hangUp()
		require.Equal(t, http.StatusTooManyRequests, <-answers)
		require.NoError(t, msg.Context().Err())
		msg.Ack()
		require.Equal(t, http.StatusNoContent, <-answers)
		synctest.Wait()
		require.Error(t, msg.Context().Err())

		// What is held for a retry is not delivered again either.
		for range 10 {
			sender, hangUp = context.WithCancel(t.Context())
			go push("3")
			msg = <-messages
			transport.DeliveryFrom(msg.Context()).RetryAfter(time.Second)
			msg.Nack()
			synctest.Wait()
			hangUp()
			select {
			case <-messages:
				require.Fail(t, "delivered again for a sender that has gone")
			case status := <-answers:
				require.Equal(t, http.StatusServiceUnavailable, status)
			}
		}
	})
}

func TestPushDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, closeAndWait := b.subscribe(transport.SubscriberConfig{Concurrency: 2})
		finished, stuck := b.push("1", ""), b.push("2", "")
		running := map[string]*message.Message{}
		for range 2 {
			msg := <-messages
			running[msg.UUID] = msg
		}
		waits := b.push("3", "")
		synctest.Wait()
		began := time.Now()
		closed := make(chan struct{})
		go func() { closeAndWait(); close(closed) }()
		require.Equal(t, http.StatusServiceUnavailable, (<-waits).Code)
		require.Equal(t, http.StatusServiceUnavailable, (<-b.push("4", "")).Code)
		require.Zero(t, time.Since(began))
		running["event-1"].Ack()
		require.Equal(t, http.StatusNoContent, (<-finished).Code)
		require.NoError(t, running["event-2"].Context().Err())
		<-closed
		require.Equal(t, transport.DefaultDrainTimeout, time.Since(began))
		require.Error(t, running["event-2"].Context().Err())
		require.Equal(t, http.StatusServiceUnavailable, (<-stuck).Code)
		require.EqualValues(t, 2, b.count(outcomeClosing))
	})
}

// slowWriter is for a connection that takes its time.
type slowWriter struct {
	*httptest.ResponseRecorder
	sent chan struct{}
}

func (w slowWriter) WriteHeader(status int) {
	<-w.sent
	w.ResponseRecorder.WriteHeader(status)
}

// When Close has returned, the answers are sent, so that a server may be shut down.
func TestPushCloseWaitsForAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, closeAndWait := b.subscribe(transport.SubscriberConfig{})
		w := slowWriter{httptest.NewRecorder(), make(chan struct{})}
		go b.server.ServeHTTP(w, b.request(wrapped("1", "")))
		(<-messages).Ack()
		closed := make(chan struct{})
		go func() { closeAndWait(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			require.Fail(t, "Close did not wait for the answer")
		default:
		}
		close(w.sent)
		<-closed
		require.Equal(t, http.StatusNoContent, w.Code)
		require.True(t, w.Flushed)
	})
}
