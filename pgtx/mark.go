package pgtx

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// A caller that has the connection may end the transaction and begin another one. The server's later answers do not show
// this: COMMIT would succeed, but commit only the queued statements and collected items. So a transaction whose connection
// was given away gets a mark: a setting that lasts until the transaction ends. A statement before COMMIT checks the mark.
const (
	setMark  = "set local millrace.transaction = 'open'"
	findMark = "select cast(case current_setting('millrace.transaction', true) when 'open' then '1' else 'ended' end as int)"
)

// watch makes the next statement set the mark. It does nothing if the transaction may be inside a savepoint by hand, because
// a rollback to that savepoint would remove the mark too.
func (t *transaction) watch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched = t.watched || t.direct < 0
}

// made returns the number of open savepoints that the server has executed.
func (t *transaction) made() (n int) {
	for _, sp := range t.savepoints {
		if sp.made {
			n++
		}
	}
	return n
}

// checkMark adds a statement that fails if the mark is gone.
func (p *pipeline) checkMark() {
	p.batch.Queue(findMark)
	p.explain = append(p.explain, func(err error) error {
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "22P02" { // findMark's cast of 'ended' to int has failed
			return errEndedByStatement
		}
		return err
	})
	p.first = append(p.first, 0)
}
