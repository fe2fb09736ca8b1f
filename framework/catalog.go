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

// Published is an argument of Service.Publishes: a topic of any type, as Topic returns it.
type Published interface {
	Name() string
	publishes() (catalog.Event, error)
}

// Publishes declares which events the service publishes, for its Catalog. Topics of schedules are declared automatically.
// Publishes has no other effect.
func (s *Service) Publishes(topics ...Published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = append(s.published, topics...)
}

// Catalog describes the events that the service publishes (see Publishes) and handles, as an AsyncAPI 3.0 document. Call it when
// all handlers are added, or get it from the server for operators at /catalog. The command "millrace catalog" prints it, and
// compares it with that of the next version to find breaking changes.
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
	_ = e.Encode(document) // an error means that the client has gone
}

// publishes describes the events that Publish writes.
func (t *TopicOf[T]) publishes() (catalog.Event, error) { return t.events.Catalog()[0], t.err }
