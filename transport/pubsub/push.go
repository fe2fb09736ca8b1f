package pubsub

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"
)

// maxPushBytes is the largest body of a push request: 10 MB of data are 13.4 MB of base64, and the attributes' 128 KB are
// up to six times as much in JSON.
const maxPushBytes = 16 << 20

// PushHandler serves the requests of push subscriptions: of each consumer whose SubscriptionConfig has Push, and that is
// subscribed through Subscriber like any other. It is mounted under the path of Push.Endpoint; the last element of a
// request's path is the subscription's ID. It may be used concurrently, and before the first Subscribe.
//
// A request lasts until its message is acked (204) or nacked (503). One that finds no handler in time gets 429, one that
// nobody is subscribed for 503, and one that is no Pub/Sub push, or not the one that Push asks for, 400 to 413 with the
// reason. Whatever is not 204, Pub/Sub sends again: at once, or by Retry, and more slowly for the whole subscription when
// there is much of it. With DeadLetter it gives up after MaxAttempts. So none of these loses a message, and each that
// will not pass by itself is logged and counted.
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
		received := time.Now() // before the token is checked, which may fetch certificates
		id := path.Base(r.URL.Path)
		consumer := id[strings.LastIndexByte(id, '.')+1:]
		settings := t.config.subscription(consumer)
		target, refused := t.pushTarget(r, id, settings.Push)
		if refused != nil {
			t.answerPush(w, r, "", id, *refused)
			return
		}
		if refused := target.admit(); refused != nil {
			t.answerPush(w, r, consumer, id, *refused)
			return
		}
		defer target.leave()
		message, refused := readPush(w, r, id, settings.Push)
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

func (t *Transport) answerPush(w http.ResponseWriter, r *http.Request, consumer, id string, a answer) {
	t.pushes.observer.observe(r.Context(), consumer, id, a)
	a.write(w)
}

// pushTarget returns the target of a request that may be served.
func (t *Transport) pushTarget(r *http.Request, id string, push *Push) (*pushTarget, *answer) {
	unknown := &answer{status: http.StatusNotFound, outcome: pushUnknown, reason: "no consumer here has this push subscription: want the path to end with the ID of one"}
	if r.Method != http.MethodPost {
		return nil, &answer{status: http.StatusMethodNotAllowed, outcome: pushMethod, reason: "want POST"}
	}
	if push == nil {
		return nil, unknown
	}
	if refused := t.pushes.auth.check(r, push); refused != nil {
		return nil, refused
	}
	target := t.pushes.target(id, false)
	if target == nil {
		return nil, unknown
	}
	return target, nil
}

func readPush(w http.ResponseWriter, r *http.Request, id string, push *Push) (*pubsub.Message, *answer) {
	malformed := func(err error) *answer {
		return &answer{status: http.StatusBadRequest, outcome: pushMalformed, reason: "no push of this subscription", err: err}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPushBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &answer{status: http.StatusRequestEntityTooLarge, outcome: pushTooLarge, reason: fmt.Sprintf("want up to %d bytes", tooLarge.Limit)}
	}
	if err != nil {
		return nil, malformed(fmt.Errorf("read the body: %w", err))
	}
	p, err := decodePush(r.Header, body, push.Unwrapped)
	if err != nil {
		return nil, malformed(err)
	}
	if p.subscription != "" && path.Base(p.subscription) != id {
		return nil, malformed(fmt.Errorf("a message of subscription %q came to the endpoint of %q", p.subscription, id))
	}
	return p.message, nil
}
