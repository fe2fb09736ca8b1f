package pubsub

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// PushHandler serves the requests of push subscriptions: of each consumer whose SubscriptionConfig has Push, and that is
// subscribed through Subscriber like any other. It is mounted under the path of Push.Endpoint, or Push.Path; the last element of a
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
// own are lost (except a CloudEvent's content type), and values should be ASCII; and a proxy that drops headers with
// underscores (nginx by default) drops the event's ID. Google's emulator sends no key in the wrapped form.
//
// Close the router or the transport before the http.Server is shut down: Close waits until the answers are sent.
func (t *Transport) PushHandler() http.Handler { return t.pushes }

// PushPaths implements transport.PushServer: Push.Path of each consumer, or the path of its endpoint.
func (t *Transport) PushPaths() (paths []string) {
	for _, push := range t.config.pushes() {
		at, err := url.Parse(push.Endpoint)
		if push.Path != "" {
			at, err = &url.URL{Path: strings.TrimSuffix(push.Path, "/")}, nil
		}
		if err == nil { // it was validated
			paths = append(paths, at.EscapedPath())
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
