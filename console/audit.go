package console

import (
	"context"
	"html/template"
	"net/http"
	"net/url"

	"github.com/millrace-go/millrace/console/internal/audit"
	"github.com/millrace-go/millrace/console/internal/figures"
)

// auditPage is the data of page_audit.html.
type auditPage struct {
	Lines []audit.Line
	First bool
	Older template.URL // the query of the next page; "" for none
}

func (q *request) audit() error {
	text := q.r.URL.Query().Get("before")
	behind, ok := audit.ParseCursor(text)
	if !ok {
		return errNotFound
	}
	there := q.snapshot().There
	p, err := read(q, "audit "+behind.String(), figures.Fresh, func(ctx context.Context, db *database) (p auditPage, err error) {
		lines, next, err := audit.Read(ctx, db.Pool, db.Schema, there, behind)
		if p.Lines = lines; next != nil {
			p.Older = template.URL(url.Values{"before": {next.String()}}.Encode()) // Encode has escaped it
		}
		return p, err
	})
	if err != nil {
		return err
	}
	p.First = text == ""
	q.render(http.StatusOK, "page_audit.html", "Audit", "audit", p)
	return nil
}
