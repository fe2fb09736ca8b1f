package pgtx

import (
	"context"

	"github.com/jackc/pgx/v5"
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
