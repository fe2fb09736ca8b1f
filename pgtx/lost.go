package pgtx

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Lost reports whether the connection of the transaction that the context carries is gone. It tells an outage of the
// database from a mistake of what ran in the transaction, whatever was made of the error in between.
func Lost(ctx context.Context) bool {
	u := unitOf(ctx)
	if u == nil || u.tx == nil {
		return false
	}
	var conn *pgx.Conn
	if u.work != nil {
		conn = u.work.conn // tx.Conn would send what waits
	} else {
		conn = u.tx.Conn()
	}
	return conn != nil && conn.IsClosed()
}

// Inherited reports whether a statement has failed inside the savepoint of this context that was queued or collected before
// it, and was sent by a Flush or the like: that says nothing about what ran in the savepoint.
func Inherited(ctx context.Context) bool {
	u := unitOf(ctx)
	if u == nil {
		return false
	}
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
