package pgdays

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// A day has the records of all services, so the longest retention decides when it is dropped. The table's own migration creates a table
// <table>_retention (service text, keep interval, renewed_at timestamptz default now(), primary key (service, keep)), in which services note theirs.

// Retention is how long a service keeps its records. It counts until the service has not renewed it for that long and a day.
type Retention struct {
	Service   string
	Keep      time.Duration
	RenewedAt time.Time
}

// Expiry notes that the service keeps its records for the given time, and returns the server's time before which neither it nor any other
// service keeps records. A caller that is no service ("") notes nothing. A service calls it at its start and about once an hour.
func (t Table) Expiry(ctx context.Context, db DB, service string, keep time.Duration) (before time.Time, err error) {
	rows, err := db.Query(ctx, t.query("keep"), service, keep)
	if err == nil {
		before, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("compare the services' retentions of %s: %w", t.Name, err)
	}
	return before, nil
}

// Retentions returns the retentions that count, the longest first.
func (t Table) Retentions(ctx context.Context, db DB) (all []Retention, err error) {
	rows, err := db.Query(ctx, t.query("retentions"))
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Retention])
	}
	if err != nil {
		return nil, fmt.Errorf("list the services' retentions of %s: %w", t.Name, err)
	}
	return all, nil
}

func (t Table) query(name string) string {
	return strings.ReplaceAll(pgschema.Query(files, name, t.Schema), "{table}", t.Name)
}
