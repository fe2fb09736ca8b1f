package pgtx

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Lost is pgunit.Lost.
func (u *unit) Lost() bool {
	var conn *pgx.Conn
	switch {
	case u.work != nil:
		conn = u.work.conn // tx.Conn would send what waits
	case u.tx != nil:
		conn = u.tx.Conn()
	}
	return conn != nil && conn.IsClosed()
}

// Inherited is pgunit.Inherited.
func (u *unit) Inherited() bool {
	x, ok := u.tx.(*tx)
	return ok && x.blamed
}

// blame finds the savepoints which the entry that has failed is older than.
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
