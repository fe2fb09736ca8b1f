// Package pgdsn parses connection strings. Its errors say what is wrong without showing the string.
package pgdsn

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errNone = errors.New(`no connection string: want postgres://user:password@host:5432/database, with %40 for each @ in them, %2F for / and so on, ` +
	`or "host=… user=… dbname=…" with spaces between, here or in DATABASE_URL`)

// settings are the names in pgx's errors, the more specific ones first.
var settings = []string{
	"sslmode", "sslcertmode", "sslnegotiation", "sslrootcert", "connect_timeout", "target_session_attrs", "min_protocol_version", "max_protocol_version",
	"channel_binding", "require_auth", "pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_idle_time",
	"pool_health_check_period", "pool_max_conn_lifetime_jitter", "pool_ping_timeout", "port", "service", "sslcert", "sslkey", "TLS",
}

var (
	// parameter matches the name of a server's setting.
	parameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
	// entry matches, inside a value, the beginning of an entry that was not separated by a space.
	entry = regexp.MustCompile(`[;,]\s*(host|port|user|password|dbname|sslmode)\s*=`)
	// host matches a name, an address, or the folder of a socket.
	host = regexp.MustCompile(`^([^@;=/\s]*|[/@][^@;=]*)$`)
	// address matches a URL whose password pgx ends where it was meant: at the only @ before the database.
	address = regexp.MustCompile(`^[a-z]+://([^@/]*@[^@/?]*(/[^@?]*)?(\?.*)?|[^@]*)$`)
)

// Parse is pgxpool.ParseConfig with errors that show no password. Their text begins after the name of the setting and "is ".
//
// It refuses what pgx would read differently from what was meant. Otherwise a part of the password would be taken for the name of a host,
// a database or a parameter, and the next error would show it. It refuses an unknown scheme, a quote before a URL, unescaped "@" and "/"
// in a password, and entries separated by commas or semicolons.
func Parse(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return nil, fmt.Errorf("naming a file: want one that can be read: %w", file)
	}
	if err != nil {
		return nil, wrong(err)
	}
	if url := strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://"); url && !address.MatchString(dsn) {
		return nil, errNone
	}
	if c := config.ConnConfig; !host.MatchString(c.Host) || entry.MatchString(c.User) || entry.MatchString(c.Database) {
		return nil, errNone
	}
	for _, f := range config.ConnConfig.Fallbacks {
		if !host.MatchString(f.Host) {
			return nil, errNone
		}
	}
	for key, value := range config.ConnConfig.RuntimeParams {
		if !parameter.MatchString(key) || entry.MatchString(value) {
			return nil, errNone
		}
	}
	return config, nil
}

// wrong names the setting that pgx refuses, without its value.
func wrong(err error) error {
	var refused *pgconn.ParseConfigError
	if !errors.As(err, &refused) {
		return errNone
	}
	text := err.Error()
	text = text[strings.LastIndex(text, "`")+1:] // the text before it contains the connection string
	if strings.Contains(text, "failed to parse") {
		return errNone
	}
	for _, name := range settings {
		if strings.Contains(text, name) {
			return fmt.Errorf("a connection string with a wrong %s: want one that PostgreSQL's clients take, there or in the PG… variable that stands for it", name)
		}
	}
	return errNone
}
