package pgtx

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgunit"
)

// Open is pgunit.Open.
func (u *unit) Open(o *pgunit.Opening) error {
	if u.work == nil || u.work.begun || u.work.opening != nil {
		return errors.New("open the transaction: it has begun")
	}
	u.work.opening = o
	return nil
}

// Begin is pgunit.Begin.
func (u *unit) Begin(ctx context.Context) error {
	if u.work == nil || u.work.opening == nil {
		return nil
	}
	if err := u.work.usable(); err != nil || u.work.begun {
		return err
	}
	return u.work.tell(ctx)
}

// opens reports whether the next statement brings the opening along.
func (t *transaction) opens() bool { return t.opening != nil && !t.begun }

// beginning is BEGIN and the opening; nothing once they were sent.
func (t *transaction) beginning() (lead []statement) {
	if t.begun {
		return nil
	}
	lead = append(lead, statement{sql: t.begin})
	if t.opening != nil {
		lead = append(lead, statement{sql: t.opening.SQL, args: t.opening.Args})
	}
	return lead
}

// implicit reports whether the transaction, of which nothing was sent yet, needs neither BEGIN nor COMMIT: the pipeline holds all
// of it, and its statements do the same without them. CALL could commit, and LOCK and SET LOCAL want a BEGIN.
func (t *transaction) implicit(p pipeline) bool {
	return t.opens() && t.opening.Implicit && !slices.ContainsFunc(p.batch.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return !isPlain(q.SQL) || !(statement{sql: q.SQL, args: q.Arguments}).same()
	})
}

// sent notes that what the server was owed is on its way.
func (t *transaction) sent() {
	t.begun = true
	if t.opening != nil {
		t.opening.Sent = true
	}
}

// refused returns the opening's error if err, which s got in the lead, is the server's answer to the opening. It is nil where
// the connection was lost: then the server may have executed all of the lead.
func (t *transaction) refused(s statement, err error) error {
	o := t.opening
	if o == nil {
		return nil
	}
	sql := s.sql
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) { // all statements are prepared before the first result
		sql = pre.SQL()
	}
	if sql != o.SQL || !errors.As(err, new(*pgconn.PgError)) {
		return nil
	}
	o.Err = o.Explain(plain(err))
	return o.Err
}

// isOne reports whether the text is surely one statement.
func isOne(sql string) bool {
	return !strings.Contains(strings.TrimRight(sql, "; \t\r\n"), ";")
}
