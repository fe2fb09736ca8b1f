package console

import (
	"net/http"

	"github.com/millrace-go/millrace/console/internal/figures"
)

// consumersPage is the data of page_consumers.html.
type consumersPage struct {
	figures.Flowing
	Unused    bool // the schema has no claim
	Consumers []figures.Consumer
	More      int // number of consumers that are not shown
}

// maxConsumers is how many consumers the page shows.
const maxConsumers = 200

func (q *request) consumers() error {
	s := q.snapshot()
	p := consumersPage{Unused: !s.There["claim"], Flowing: s.Flowing(), Consumers: s.Consumers[:min(len(s.Consumers), maxConsumers)]}
	p.More = len(s.Consumers) - len(p.Consumers)
	q.render(http.StatusOK, "page_consumers.html", "Consumers", "consumers", p)
	return nil
}
