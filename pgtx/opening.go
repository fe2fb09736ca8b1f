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

// Open implements pgunit.Open.
func (u *unit) Open(o *pgunit.Opening) error {
	if u.work == nil || u.work.begun || u.work.opening != nil {
		return errors.New("open the transaction: it has begun")
	}
	u.work.opening = o
	return nil
}

// Begin implements pgunit.Begin.
func (u *unit) Begin(ctx context.Context) error {
	if u.work == nil || u.work.opening == nil {
		return nil
	}
	if err := u.work.usable(); err != nil || u.work.begun {
		return err
	}
	return u.work.tell(ctx)
}

// opens reports whether the opening must go with the next statement.
func (t *transaction) opens() bool { return t.opening != nil && !t.begun }

// beginning returns BEGIN and the opening, or nothing if they were sent already.
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

// implicit reports whether the transaction can be sent without BEGIN and COMMIT: nothing was sent yet, the pipeline is the
// whole transaction, and its statements do the same without them. CALL could commit; LOCK and SET LOCAL need BEGIN.
func (t *transaction) implicit(p pipeline) bool {
	return t.opens() && t.opening.Implicit && !slices.ContainsFunc(p.batch.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return !isPlain(q.SQL) || !(statement{sql: q.SQL, args: q.Arguments}).same()
	})
}

// sent records that BEGIN and the opening were sent.
func (t *transaction) sent() {
	t.begun = true
	if t.opening != nil {
		t.opening.Sent = true
	}
}

// refused returns the opening's error if err, the error of statement s of the lead, is the server's answer to the opening. It
// returns nil if the connection was lost: then the server may have executed the whole lead.
func (t *transaction) refused(s statement, err error) error {
	o := t.opening
	if o == nil {
		return nil
	}
	sql := s.sql
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) { // pgx prepares all statements before it reads the first result
		sql = pre.SQL()
	}
	if sql != o.SQL || !errors.As(err, new(*pgconn.PgError)) {
		return nil
	}
	o.Err = o.Explain(plain(err))
	return o.Err
}

// isOne reports whether the text is certainly a single statement.
func isOne(sql string) bool {
	return !strings.Contains(strings.TrimRight(sql, "; \t\r\n"), ";")
}
