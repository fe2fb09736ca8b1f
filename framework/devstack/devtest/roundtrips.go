package devtest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// RoundTrips counts how often a client sends something after it has received something. It is safe for concurrent use.
type RoundTrips struct {
	n        atomic.Int64
	received atomic.Bool
}

// Of returns the number of round trips of f. It calls f twice and counts the second call, so that prepared statements are not counted.
func (r *RoundTrips) Of(f func()) int {
	f()
	before := r.n.Load()
	f()
	return int(r.n.Load() - before)
}

type countedConn struct {
	net.Conn
	trips *RoundTrips
}

func (c countedConn) Write(b []byte) (int, error) {
	if c.trips.received.Swap(false) {
		c.trips.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.trips.received.Store(true)
	}
	return n, err
}

// CountedPool is Pool with one connection, whose round trips are counted.
func CountedPool(t testing.TB, options ...func(*pgxpool.Config)) (*pgxpool.Pool, *RoundTrips) {
	t.Helper()
	trips := &RoundTrips{}
	counted := func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return countedConn{conn, trips}, err
		}
	}
	return PoolOn(t, Pool(t).Config().ConnString(), append([]func(*pgxpool.Config){counted}, options...)...), trips
}
