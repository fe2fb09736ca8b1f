// Package pgschema handles the PostgreSQL schema of Millrace's tables: its name, statements with that name, and numbered migrations.
package pgschema

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Default is the schema's name if the user chose none.
const Default = "millrace"

// The names of NOTIFY channels and sequences are built from the schema's name, so its length is limited.
var pattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Validate returns name, or Default for "", or an error that says which names are allowed.
func Validate(name string) (string, error) {
	if name == "" {
		return Default, nil
	}
	if !pattern.MatchString(name) || strings.HasPrefix(name, "pg_") {
		return "", fmt.Errorf("Schema is %q: want 1 to 48 lower-case letters, digits and \"_\", not starting with a digit or \"pg_\"", name)
	}
	return name, nil
}

// Render replaces {schema} by the schema's quoted name. {alike} and {/alike} around the text of an error convert it to the text that
// errors of one group share.
func Render(sql, schema string) string {
	return strings.NewReplacer("{schema}", `"`+schema+`"`, "{alike}", "regexp_replace(regexp_replace(regexp_replace(left(", "{/alike}", `, 500),
    '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\m(0x)?[0-9a-f]{16,}\M', '<id>', 'gi'),
    '"[^"]*"|`+"`[^`]*`"+`|(?<!\w)''[^'']*''', '<text>', 'g'),
    '\m0x[0-9a-f]+\M|\d+', '<n>', 'gi')`).Replace(sql)
}

// Prepare prepares every file's statement against the schema's tables. It is for tests.
func Prepare(ctx context.Context, conn *pgx.Conn, files fs.FS, schema string) error {
	names, err := fs.Glob(files, "queries/*.sql")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no statement to prepare")
	}
	for _, n := range names {
		name := strings.TrimSuffix(path.Base(n), ".sql")
		if _, err := conn.Prepare(ctx, name, Query(files, name, schema)); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
	}
	return nil
}

// Query returns Render of an embedded file, which holds one statement. It panics if the file does not exist.
func Query(files fs.FS, name, schema string) string {
	b, err := fs.ReadFile(files, "queries/"+name+".sql")
	if err != nil {
		panic(err)
	}
	return Render(string(b), schema)
}
