package pgtx

import (
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// unwrap follows the handle's methods Unwrap and returns the innermost DB.
func unwrap(db DB) DB {
	for {
		w, ok := db.(interface{ Unwrap() DB })
		if !ok {
			return db
		}
		inner := w.Unwrap()
		if inner == nil {
			return db
		}
		db = inner
	}
}

// reaches reports whether conn may belong to the handle. It is for transactions whose own handle is not known.
func reaches(conn *pgx.Conn, handle DB) bool {
	if conn == nil {
		return false
	}
	pool, ok := handle.(*pgxpool.Pool)
	if !ok {
		return connOf(handle) == conn
	}
	a, b := conn.Config(), pool.Config().ConnConfig
	return a.Host == b.Host && a.Port == b.Port && a.Database == b.Database && a.User == b.User && maps.Equal(a.RuntimeParams, b.RuntimeParams)
}

// connOf returns the handle's connection if the handle is a single connection, and nil otherwise.
func connOf(handle DB) *pgx.Conn {
	switch h := handle.(type) {
	case *pgx.Conn:
		return h
	case *pgxpool.Conn:
		return h.Conn()
	}
	return nil
}

// describe names the handle in an error.
func describe(db DB) string {
	handle := unwrap(db)
	if pool, ok := handle.(*pgxpool.Pool); ok {
		return fmt.Sprintf("%T (%s)", db, configured(pool.Config().ConnConfig))
	}
	if conn := connOf(handle); conn != nil {
		return fmt.Sprintf("%T (%s)", db, address(conn))
	}
	return fmt.Sprintf("%T", db)
}

// address names the connection's database in an error.
func address(conn *pgx.Conn) string {
	if conn == nil {
		return "its database is not known"
	}
	return configured(conn.Config())
}

func configured(c *pgx.ConnConfig) string {
	return fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database)
}
