package devtest

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Cut breaks a connection after the server has done its work and before the client gets the answer. It is safe for concurrent use.
type Cut struct{ armed atomic.Bool }

// Next lets the next request reach the server, which handles it. The connection is closed before the answer arrives.
func (c *Cut) Next() { c.armed.Store(true) }

type cutConn struct {
	net.Conn
	cut *Cut
	now atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.cut.armed.Swap(false) {
		c.now.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.now.Load() {
		_ = c.Close() // the answer is lost
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// CutPool is Pool with at most one connection at a time, which can be cut.
func CutPool(t testing.TB, options ...func(*pgxpool.Config)) (*pgxpool.Pool, *Cut) {
	t.Helper()
	cut := &Cut{}
	cuttable := func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &cutConn{Conn: conn, cut: cut}, err
		}
	}
	return PoolOn(t, Pool(t).Config().ConnString(), append([]func(*pgxpool.Config){cuttable}, options...)...), cut
}
