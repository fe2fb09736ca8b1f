package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// Handler publishes the CloudEvents of HTTP requests. Every field is set.
type Handler struct {
	Codec    Codec
	Topic    string
	Mode     cloudevent.Mode // of the published CloudEvents
	MaxBytes int             // limit of a request's body
	Publish  func(ctx context.Context, msg *message.Message) error
	Log      *slog.Logger
}

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.MaxBytes)))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the event is larger than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "read the event: "+err.Error(), http.StatusBadRequest)
		return
	}
	msg, err := h.accepted(r.Header, body)
	if err == nil {
		err = h.Publish(r.Context(), msg)
	} else {
		err = errors.Join(outbox.ErrInvalidMessage, err)
	}
	switch {
	case errors.Is(err, cloudevent.ErrNotCloudEvent):
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
	case errors.Is(err, outbox.ErrInvalidMessage):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		h.Log.ErrorContext(r.Context(), "CloudEvent of a request could not be published", "topic", h.Topic, "error", err)
		http.Error(w, "the event could not be stored: send it again", http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// accepted returns the message for the CloudEvent in a request.
func (h Handler) accepted(header http.Header, body []byte) (*message.Message, error) {
	e, err := cloudevent.FromHTTP(header, body)
	if err != nil {
		return nil, err
	}
	msg, err := cloudevent.ToMessage(e, h.Codec.Binding, h.Mode)
	if err != nil {
		return nil, err
	}
	if _, err := cloudevent.FromMessage(msg); err != nil { // refuse an event that no handler could read, such as one whose time in UTC has a five-digit year
		return nil, err
	}
	msg.UUID = cloudevent.Identity(e.Source(), e.ID())
	transport.SetKey(msg, cloudevent.Key(e))
	return msg, nil
}
