// Package push receives the messages of push subscriptions, by HTTP.
package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// MaxBodyBytes is the largest body of a push request: 10 MB of data are 13.4 MB in base64, and the attributes' 128 KB are up to six times
// as large in JSON.
const MaxBodyBytes = 16 << 20

// Config says how pushes are received, as pubsub.Config describes it.
type Config struct {
	Project       wire.Project
	MaxBytes      int                            // of the bodies of all requests together
	Consumer      func(consumer string) Consumer // the settings of a consumer
	All           []*setting.Push                // the settings of all consumers
	MeterProvider metric.MeterProvider
	Log           *slog.Logger
}

// Consumer holds the settings for requests of a consumer's subscriptions.
type Consumer struct {
	Push        *setting.Push // nil: it pulls
	AckDeadline time.Duration
}

// Server serves the requests of push subscriptions, as pubsub.Transport.PushHandler describes it. It is safe for concurrent use.
type Server struct {
	config   Config
	auth     *authenticator
	observer *observer
	room     room

	mu      sync.Mutex
	targets map[string]*target // by subscription ID; a target stays after its last subscriber
}

// New returns a server without subscribers.
func New(ctx context.Context, config Config) (*Server, error) {
	auth, err := newAuthenticator(ctx, http.DefaultTransport)
	if err != nil {
		return nil, err
	}
	observer, err := newObserver(config.MeterProvider, config.Log)
	if err != nil {
		return nil, err
	}
	return &Server{config: config, auth: auth, observer: observer, room: newRoom(config.MaxBytes), targets: map[string]*target{}}, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The answer waits for the handler, for which a server's timeout would be too short.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	received := time.Now() // before the token is checked, which may fetch certificates
	id := path.Base(r.URL.Path)
	consumer := transport.HandlerOf(id)
	settings := s.config.Consumer(consumer)
	target, refused := s.route(r, id, settings.Push)
	if refused != nil {
		s.answer(w, r, "", id, *refused)
		return
	}
	gone, refused := target.admit()
	if refused != nil {
		s.answer(w, r, consumer, id, *refused)
		return
	}
	defer target.leave()
	message, release, refused := s.read(w, r, id, settings, received, gone)
	defer release()
	if refused != nil {
		s.answer(w, r, consumer, id, *refused)
		return
	}
	intake := target.choose()
	if intake == nil {
		s.answer(w, r, consumer, id, closingAnswer)
		return
	}
	defer func() { intake.delivering.Done() }()
	a := intake.serve(r.Context(), message, received)
	for a.outcome == outcomeClosing {
		other := target.choose()
		if other == nil {
			break
		}
		intake.delivering.Done()
		intake = other
		a = intake.serve(r.Context(), message, received)
	}
	s.answer(w, r, consumer, id, a)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, consumer, id string, a answer) {
	s.observer.observe(r.Context(), consumer, id, a)
	a.write(w)
}

// route returns the target of a request that may be served.
func (s *Server) route(r *http.Request, id string, push *setting.Push) (*target, *answer) {
	if r.Method != http.MethodPost {
		return nil, &answer{status: http.StatusMethodNotAllowed, outcome: outcomeMethod, reason: "want POST"}
	}
	if strings.LastIndexByte(id, '.') < 1 {
		push = nil // not the name of a subscription
	}
	if refused := s.authenticate(r, push); refused != nil {
		return nil, refused
	}
	if push == nil {
		return nil, &answer{status: http.StatusNotFound, outcome: outcomeUnknown, reason: "no consumer here has this push subscription: want the path to end with the ID of one"}
	}
	target := s.target(id, false)
	if target == nil { // the service is starting, and subscribes to one after another
		refused := closingAnswer
		return nil, &refused
	}
	return target, nil
}

// authenticate checks the request's token against push. If the consumer does not push, it checks the token against all other consumers,
// so that a stranger does not learn which consumers exist.
func (s *Server) authenticate(r *http.Request, push *setting.Push) (refused *answer) {
	if push != nil {
		return s.auth.check(r, push)
	}
	for _, push := range s.config.All {
		if refused = s.auth.check(r, push); refused == nil {
			return nil
		}
	}
	return refused
}

// bodyTimeout is how long reading a body may take, if a handler could still get the message then.
const bodyTimeout = 30 * time.Second

// read reads the message of a request that came at received. It first waits for room in Config.MaxBytes, and then reads the body. The
// room is held until release is called.
func (s *Server) read(w http.ResponseWriter, r *http.Request, id string, settings Consumer, received time.Time, gone <-chan struct{}) (message *pubsub.Message, release func(), refused *answer) {
	none := func() {}
	tooLarge := &answer{status: http.StatusRequestEntityTooLarge, outcome: outcomeTooLarge, reason: fmt.Sprintf("want up to %d bytes", MaxBodyBytes)}
	size := r.ContentLength
	switch {
	case size > MaxBodyBytes:
		return nil, none, tooLarge
	case size < 0: // unknown
		size = MaxBodyBytes
	}
	latest := latestDelivery(received, settings.AckDeadline)
	room := s.room
	if refused := room.take(r.Context(), size, latest, gone); refused != nil {
		return nil, none, refused
	}
	release = func() { room.memory.Release(size) }

	controller := http.NewResponseController(w)
	if soonest := time.Now().Add(bodyTimeout); latest.After(soonest) {
		latest = soonest
	}
	_ = controller.SetReadDeadline(latest) // a server that does not support it has its own timeout
	body := bytes.NewBuffer(make([]byte, 0, min(size, r.ContentLength+1)+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err == nil {
		_ = controller.SetReadDeadline(time.Time{}) // otherwise the server would consider the sender gone
	}
	if held := int64(body.Len()); held < size {
		room.memory.Release(size - held)
		size = held
	}
	malformed := func(err error) (*pubsub.Message, func(), *answer) {
		return nil, release, &answer{status: http.StatusBadRequest, outcome: outcomeMalformed, reason: "no push of this subscription", err: err}
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, release, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, release, &answer{status: http.StatusRequestTimeout, outcome: outcomeSlow, reason: "the body came too slowly: deliver it again"}
	case err != nil:
		return malformed(fmt.Errorf("read the body: %w", err))
	}
	p, err := decode(r.Header, body.Bytes(), settings.Push.Unwrapped)
	if err != nil {
		return malformed(err)
	}
	if want := s.config.Project.SubscriptionOf(id); p.subscription != "" && p.subscription != want {
		return malformed(fmt.Errorf("a message of subscription %.300q came to the endpoint of %q", p.subscription, want))
	}
	return p.message, release, nil
}
