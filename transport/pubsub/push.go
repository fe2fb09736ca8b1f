package pubsub

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// maxPushBytes is the largest body of a push request: 10 MB of data are 13.4 MB of base64, and the attributes' 128 KB are
// up to six times as much in JSON.
const maxPushBytes = 16 << 20

// PushHandler serves the requests of push subscriptions: of each consumer whose SubscriptionConfig has Push, and that is
// subscribed through Subscriber like any other. It is mounted under the path of Push.Endpoint; the last element of a
// request's path is the subscription's ID. It may be used concurrently, and before the first Subscribe.
//
// A request lasts until its message is acked (204) or nacked (503). One that finds no handler in time, or no room
// (Config.MaxPushBytes), gets 429; one whose body comes too slowly 408; one that nobody is subscribed for, or not yet, 503;
// one that is no Pub/Sub push, or not of this subscription, 400 to 413 with the reason. A request without the token that
// Push asks for gets 401 or 403 and is told nothing else: the log says what is wanted. Whatever is not 204, Pub/Sub sends
// again: at once, or by Retry, and more slowly for the whole subscription when there is much of it. With DeadLetter it
// gives up after MaxAttempts. So none of these loses a message, and each that will not pass by itself is logged and counted.
//
// What push cannot do: a request lasts no longer than AckDeadline, or its message is delivered again while the handler
// still runs, which the claim absorbs. Delivery.RetryAfter is kept only while a quarter of it remains; a longer wait is
// left to Retry. Unwrapped, the names of metadata come in lower case, those that HTTP or a proxy knows as a header of its
// own are lost, and values should be ASCII; and a proxy that drops headers with underscores (nginx by default) drops the
// event's ID. Google's emulator sends no key in the wrapped form.
//
// Close the router or the transport before the http.Server is shut down: Close waits until the answers are sent.
func (t *Transport) PushHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The answer waits for the handler, for which a server's timeout is too short.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		received := time.Now() // before the token is checked, which may fetch certificates
		id := path.Base(r.URL.Path)
		consumer := transport.HandlerOf(id)
		settings := t.config.subscription(consumer)
		target, refused := t.pushTarget(r, id, settings.Push)
		if refused != nil {
			t.answerPush(w, r, "", id, *refused)
			return
		}
		gone, refused := target.admit()
		if refused != nil {
			t.answerPush(w, r, consumer, id, *refused)
			return
		}
		defer target.leave()
		message, release, refused := t.readPush(w, r, id, settings, received, gone)
		defer release()
		if refused != nil {
			t.answerPush(w, r, consumer, id, *refused)
			return
		}
		intake := target.choose()
		if intake == nil {
			t.answerPush(w, r, consumer, id, closingAnswer)
			return
		}
		defer func() { intake.delivering.Done() }()
		a := intake.serve(r.Context(), message, received)
		for a.outcome == pushClosing {
			other := target.choose()
			if other == nil {
				break
			}
			intake.delivering.Done()
			intake = other
			a = intake.serve(r.Context(), message, received)
		}
		t.answerPush(w, r, consumer, id, a)
	})
}

// PushPaths implements transport.PushServer: the paths of the endpoints of push.
func (t *Transport) PushPaths() (paths []string) {
	for _, push := range t.config.pushes() {
		if endpoint, err := url.Parse(push.Endpoint); err == nil { // it was validated
			paths = append(paths, endpoint.EscapedPath())
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// pushes are the push settings of all consumers.
func (c Config) pushes() (all []*Push) {
	if c.Subscription.Push != nil {
		all = append(all, c.Subscription.Push)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Consumers)) {
		if push := c.Consumers[name].Push; push != nil {
			all = append(all, push)
		}
	}
	return all
}

func (t *Transport) answerPush(w http.ResponseWriter, r *http.Request, consumer, id string, a answer) {
	t.pushes.observer.observe(r.Context(), consumer, id, a)
	a.write(w)
}

// pushTarget returns the target of a request that may be served.
func (t *Transport) pushTarget(r *http.Request, id string, push *Push) (*pushTarget, *answer) {
	if r.Method != http.MethodPost {
		return nil, &answer{status: http.StatusMethodNotAllowed, outcome: pushMethod, reason: "want POST"}
	}
	if strings.LastIndexByte(id, '.') < 1 {
		push = nil // the name of no subscription
	}
	if refused := t.authenticate(r, push); refused != nil {
		return nil, refused
	}
	if push == nil {
		return nil, &answer{status: http.StatusNotFound, outcome: pushUnknown, reason: "no consumer here has this push subscription: want the path to end with the ID of one"}
	}
	target := t.pushes.target(id, false)
	if target == nil { // the service starts, and does not subscribe to all at once
		refused := closingAnswer
		return nil, &refused
	}
	return target, nil
}

// authenticate checks the request's token against push. A consumer without push has none: then it takes the token of any
// other one, so that a stranger does not learn which consumers there are.
func (t *Transport) authenticate(r *http.Request, push *Push) (refused *answer) {
	if push != nil {
		return t.pushes.auth.check(r, push)
	}
	for _, push := range t.config.pushes() {
		if refused = t.pushes.auth.check(r, push); refused == nil {
			return nil
		}
	}
	return refused
}

// bodyTimeout is how long a body may take, if its handler could then be given the message at all.
const bodyTimeout = 30 * time.Second

// readPush reads the message of a request that came at received. Its body takes room of MaxPushBytes, which it waits for
// unread, until release is called.
func (t *Transport) readPush(w http.ResponseWriter, r *http.Request, id string, settings SubscriptionConfig, received time.Time, gone <-chan struct{}) (message *pubsub.Message, release func(), refused *answer) {
	none := func() {}
	tooLarge := &answer{status: http.StatusRequestEntityTooLarge, outcome: pushTooLarge, reason: fmt.Sprintf("want up to %d bytes", maxPushBytes)}
	size := r.ContentLength
	switch {
	case size > maxPushBytes:
		return nil, none, tooLarge
	case size < 0: // unknown
		size = maxPushBytes
	}
	latest := latestDelivery(received, settings.AckDeadline)
	room := t.pushes.room
	if refused := room.take(r.Context(), size, latest, gone); refused != nil {
		return nil, none, refused
	}
	release = func() { room.memory.Release(size) }

	controller := http.NewResponseController(w)
	if soonest := time.Now().Add(bodyTimeout); latest.After(soonest) {
		latest = soonest
	}
	_ = controller.SetReadDeadline(latest) // a server that cannot has its own
	body := bytes.NewBuffer(make([]byte, 0, min(size, r.ContentLength+1)+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxPushBytes))
	if err == nil {
		_ = controller.SetReadDeadline(time.Time{}) // or the server would take the sender for gone
	}
	if held := int64(body.Len()); held < size {
		room.memory.Release(size - held)
		size = held
	}
	malformed := func(err error) (*pubsub.Message, func(), *answer) {
		return nil, release, &answer{status: http.StatusBadRequest, outcome: pushMalformed, reason: "no push of this subscription", err: err}
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, release, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, release, &answer{status: http.StatusRequestTimeout, outcome: pushSlow, reason: "the body came too slowly: deliver it again"}
	case err != nil:
		return malformed(fmt.Errorf("read the body: %w", err))
	}
	p, err := decodePush(r.Header, body.Bytes(), settings.Push.Unwrapped)
	if err != nil {
		return malformed(err)
	}
	if want := wire.Project(t.config.ProjectID).SubscriptionOf(id); p.subscription != "" && p.subscription != want {
		return malformed(fmt.Errorf("a message of subscription %.300q came to the endpoint of %q", p.subscription, want))
	}
	return p.message, release, nil
}
