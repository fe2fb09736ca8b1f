package framework

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/internal/enum"
)

// catalogPath is where the server for operators serves the catalog.
const catalogPath = "/catalog"

// Published is a topic that Service.Publishes takes: what Topic returns, whatever its type.
type Published interface {
	Name() string
	publishes() (catalog.Event, error)
}

// Publishes declares which events the service publishes, for its Catalog. Topics of schedules are declared already. It changes nothing
// else.
func (s *Service) Publishes(topics ...Published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = append(s.published, topics...)
}

// Catalog describes what the service publishes (see Publishes) and what it handles, as an AsyncAPI 3.0 document. Call it when all handlers
// are added, or get it from the server for operators at /catalog. The command "millrace catalog" prints it, and says what the next version
// of the service breaks.
func (s *Service) Catalog() (*catalog.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := catalog.New(s.cfg.Service)
	var errs []error
	sent := map[string]bool{}
	for _, topic := range s.published {
		e, err := topic.publishes()
		if err == nil {
			err = b.Publishes(topic.Name(), e)
		}
		errs = append(errs, err)
		sent[topic.Name()] = true
	}
	for _, h := range s.handlers {
		errs = append(errs, b.Handles(h.Name, h.topic, h.known...))
	}
	for topic := range sent {
		if mode := s.cfg.CloudEvents.of(topic); mode != cloudevent.Off {
			b.CloudEvents(topic, enum.Word(mode.String()))
		}
	}
	return b.Document(), errors.Join(errs...)
}

func (s *Service) serveCatalog(w http.ResponseWriter, _ *http.Request) {
	document, err := s.Catalog()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(document) // nobody listens any more, then
}

// publishes is the event that Publish writes.
func (t *TopicOf[T]) publishes() (catalog.Event, error) { return t.events.Catalog()[0], t.err }
