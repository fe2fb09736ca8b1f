package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Entry is a schedule as an operator sees it. Times are the server's.
type Entry struct {
	Service    string `json:"service"`
	Name       string `json:"name"`
	Expression string `json:"expression"` // that of the process which was started last
	TimeZone   string `json:"time_zone"`

	// FiredAt is when the schedule fired last. Nil: it has not fired yet.
	FiredAt *time.Time `json:"fired_at,omitempty"`

	// Next is the first time that has not been fired. Nil: this program cannot read the expression.
	Next *time.Time `json:"next,omitempty"`

	Now time.Time `json:"now"` // when the schedule was read
}

// Overdue is for how long Next has passed; 0 if it has not. If it is more than a moment, the schedule was removed from the program,
// no process of the service runs, or it fails, which its log says.
func (e Entry) Overdue() time.Duration {
	if e.Next == nil {
		return 0
	}
	return max(e.Now.Sub(*e.Next), 0)
}

// List returns the schedules of all services in the schema ("" means "millrace").
func List(ctx context.Context, db pgtx.DB, schema string) (all []Entry, err error) {
	err = operate(ctx, db, schema, "list schedules", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, pgschema.Query(files, "list", schema))
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scanEntry)
		return err
	})
	return all, err
}

func scanEntry(row pgx.CollectableRow) (e Entry, err error) {
	var dueAfter time.Time
	if err := row.Scan(&e.Service, &e.Name, &e.Expression, &e.TimeZone, &dueAfter, &e.FiredAt, &e.Now); err != nil {
		return e, err
	}
	if c, err := (Times{Expression: e.Expression, TimeZone: e.TimeZone}).clock(); err == nil {
		next := c.next(dueAfter)
		e.Next = &next
	}
	return e, nil
}

// ErrNoSuchSchedule means that the service has no schedule of that name.
var ErrNoSuchSchedule = errors.New(`there is no such schedule: "millrace schedule list" shows which there are`)

// Forget deletes what is stored about a schedule that was removed from the program. A schedule of that name which is added later
// begins then; without Forget it would fire for times that it has missed. A process that still has the schedule stores it again
// and goes on.
func Forget(ctx context.Context, db pgtx.DB, schema, service, name string) error {
	return operate(ctx, db, schema, "forget schedule", func(ctx context.Context, tx pgx.Tx, schema string) error {
		done, err := tx.Exec(ctx, pgschema.Query(files, "forget", schema), service, name)
		if err == nil && done.RowsAffected() == 0 {
			err = ErrNoSuchSchedule
		}
		return err
	})
}

// operate runs an operator's statement in a transaction, after checking that the program knows the schema.
func operate(ctx context.Context, db pgtx.DB, schema, action string, f func(context.Context, pgx.Tx, string) error) error {
	schema, err := pgschema.Validate(schema)
	if err == nil {
		err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			if err := migrations.Check(ctx, tx, schema); err != nil {
				return err
			}
			return f(ctx, tx, schema)
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}

// GrantRoles names the roles that Grants is for; "" for none.
type GrantRoles struct {
	Scheduler string // of services that have schedules
	Operator  string // of those that list schedules, and forget some
}

// Grants returns the statements that give the roles what they need in the schema ("" means "millrace"), and nothing more. A
// service with schedules needs what outboxadmin.Grants gives to a writer, too.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of schedules: %w", err)
	}
	var sql strings.Builder
	for _, g := range []struct{ role, rights string }{{roles.Scheduler, "select, insert, update"}, {roles.Operator, "select, delete"}} {
		if g.role != "" {
			fmt.Fprintf(&sql, "grant usage on schema {schema} to %[1]s;\ngrant select on {schema}.migration to %[1]s;\ngrant %[2]s on {schema}.schedule to %[1]s;\n",
				pgx.Identifier{g.role}.Sanitize(), g.rights)
		}
	}
	return pgschema.Render(sql.String(), schema), nil
}
