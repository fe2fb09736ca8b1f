package pgtx

import "context"

// Lost reports whether the connection of the transaction that the context carries is gone. It tells an outage of the
// database from a mistake of what ran in the transaction, whatever was made of the error in between.
func Lost(ctx context.Context) bool {
	u := unitOf(ctx)
	switch {
	case u == nil || u.tx == nil:
		return false
	case u.work != nil:
		return u.work.conn.IsClosed() // tx.Conn would send what waits
	}
	return u.tx.Conn().IsClosed()
}
