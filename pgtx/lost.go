package pgtx

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Lost implements pgunit.Lost.
func (u *unit) Lost() bool {
	conn := u.conn()
	return conn != nil && conn.IsClosed()
}

// Sound implements pgunit.Sound.
func (u *unit) Sound() bool {
	const inTransaction = 'T'
	conn := u.conn()
	if conn == nil || conn.IsClosed() {
		return false
	}
	if u.work != nil && !u.work.begun {
		return !u.work.aborted
	}
	if conn.PgConn().TxStatus() != inTransaction {
		return false
	}
	x, ok := u.tx.(*tx)
	return !ok || !x.healed && (x.name != "" || !x.t.healed)
}

// conn returns the connection, or nil below WithSQL.
func (u *unit) conn() *pgx.Conn {
	switch {
	case u.work != nil:
		return u.work.conn // tx.Conn would send the pending entries
	case u.tx != nil:
		return u.tx.Conn()
	}
	return nil
}

// Inherited implements pgunit.Inherited.
func (u *unit) Inherited() bool {
	x, ok := u.tx.(*tx)
	return ok && x.blamed
}

// blame marks the open savepoints that are younger than the entry: the entry failed inside them, but came from outside.
func (t *transaction) blame(entry int, err error) {
	if !errors.As(err, new(*pgconn.PgError)) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, sp := range t.savepoints {
		sp.blamed = sp.blamed || entry < sp.mark
	}
}
