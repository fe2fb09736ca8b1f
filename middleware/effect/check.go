package effect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// checkTimeout bounds Check. A busy server needs seconds to open a connection; a full pooler never opens one.
const checkTimeout = 30 * time.Second

// Check verifies that the ledger can work. It returns an error, with the remedy, if the ledger's tables are missing or of another
// version, if the ledger gets no connection, or if the server allows the role fewer connections than the service's pool and the
// ledger may open together. Check cannot see that limit behind a pooler that shares connections. There, the pooler's pool must be
// larger than all pools of the services that hold transactions.
//
// Run calls Check first. Call it at start if you do not use Run.
func (l *Ledger) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := l.pool.Acquire(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("effect: the ledger gets no connection beside the service's pool of %d: the server did not answer in time. Make sure that it is reachable "+
			"and not overloaded, and leave room for Config.MaxConns (%d) more in a pooler's pool: %w", l.service, l.cfg.MaxConns, err)
	}
	if err != nil {
		return fmt.Errorf("effect: the ledger gets no connection beside the service's pool of %d: leave room for Config.MaxConns (%d) more, "+
			"in the server's max_connections and in a pooler's pool: %w", l.service, l.cfg.MaxConns, err)
	}
	defer conn.Release()
	if err := migrations.Check(ctx, conn, l.cfg.Schema); err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	var backend uint32
	var room int32
	if err := conn.QueryRow(ctx, pgschema.Query(files, "room", l.cfg.Schema)).Scan(&backend, &room); err != nil {
		return fmt.Errorf("effect: how many connections may there be: %w", err)
	}
	pooled := backend != conn.Conn().PgConn().PID() // a pooler makes up its own PID
	if need := l.service + l.cfg.MaxConns; room < need && !pooled {
		return fmt.Errorf("effect: the server lets this role have %d connections, and %d may be needed: the service's pool may open %d and the ledger %d. "+
			"Make the pool smaller (pool_max_conns), or Config.MaxConns, or raise the server's max_connections, or the role's or the database's CONNECTION LIMIT",
			room, need, l.service, l.cfg.MaxConns)
	}
	return nil
}
