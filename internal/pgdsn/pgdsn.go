// Package pgdsn reads connection strings, and tells what is wrong with one without showing it.
package pgdsn

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/jackc/pgx/v5/pgxpool"
)

// parameter is what a setting of the server may be called.
var parameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

var errNone = errors.New(`no connection string: want postgres://user:password@host:5432/database or "host=… user=… dbname=…", here or in DATABASE_URL`)

// Parse is pgxpool.ParseConfig with errors that show no password. Their text goes on from the name of the setting and
// "is ".
//
// It refuses a URL with a scheme that pgx does not know, or with a quote before it. Pgx reads that as key=value, with all
// before the first "=" as a parameter of the server: it would connect to a default host, whose refusal of the parameter
// shows the password.
func Parse(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return nil, fmt.Errorf("naming a file: want one that can be read: %w", file)
	}
	if err != nil {
		return nil, errNone // whose cause may have the password
	}
	for key := range config.ConnConfig.RuntimeParams {
		if !parameter.MatchString(key) {
			return nil, errNone
		}
	}
	return config, nil
}
