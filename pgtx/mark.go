package pgtx

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// Who has the connection may end the transaction and begin another one, without a trace in what the server answers from
// then on: COMMIT would succeed, and what was queued and collected would be all that it commits. So a transaction whose
// connection was given away has a mark, a setting that its end takes away, and COMMIT brings along a look at the mark.
const (
	setMark  = "set local millrace.transaction = 'open'"
	findMark = "select cast(case current_setting('millrace.transaction', true) when 'open' then '1' else 'ended' end as int)"
)

// watch has the mark set with the next statement. It is not for a transaction that may be inside a savepoint made by hand: who
// goes back to that one takes the mark away too.
func (t *transaction) watch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched = t.watched || t.direct < 0
}

// made is how many of the open savepoints the server has.
func (t *transaction) made() (n int) {
	for _, sp := range t.savepoints {
		if sp.made {
			n++
		}
	}
	return n
}

// checkMark makes the pipeline fail where the mark is gone.
func (p *pipeline) checkMark() {
	p.batch.Queue(findMark)
	p.explain = append(p.explain, func(err error) error {
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "22P02" { // what is not 1 is no number
			return errEndedByStatement
		}
		return err
	})
	p.first = append(p.first, 0)
}
