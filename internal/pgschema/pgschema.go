// Package pgschema knows the PostgreSQL schema that Millrace's tables live in: its name, statements that name it, and
// numbered migrations.
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

// Default is the schema's name when the user chose none.
const Default = "millrace"

// NOTIFY's channels and the names of sequences are built from the schema's name, hence the length.
var pattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Validate returns name, or Default for "", or an error that tells what a name may be.
func Validate(name string) (string, error) {
	if name == "" {
		return Default, nil
	}
	if !pattern.MatchString(name) || strings.HasPrefix(name, "pg_") {
		return "", fmt.Errorf("Schema is %q: want 1 to 48 lower-case letters, digits and \"_\", not starting with a digit or \"pg_\"", name)
	}
	return name, nil
}

// Render puts the schema's name, quoted, in the place of {schema}. Between {alike} and {/alike} stands the text of an error:
// they make it the text that errors of one group have in common.
func Render(sql, schema string) string {
	return strings.NewReplacer("{schema}", `"`+schema+`"`, "{alike}", "regexp_replace(regexp_replace(regexp_replace(left(", "{/alike}", `, 500),
    '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\m(0x)?[0-9a-f]{16,}\M', '<id>', 'gi'),
    '"[^"]*"|`+"`[^`]*`"+`|(?<!\w)''[^'']*''', '<text>', 'g'),
    '\m0x[0-9a-f]+\M|\d+', '<n>', 'gi')`).Replace(sql)
}

// Prepare prepares every file's statement against the schema's tables: what a test of them calls.
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

// Query is Render of an embedded file, which holds one statement. It panics when there is no such file.
func Query(files fs.FS, name, schema string) string {
	b, err := fs.ReadFile(files, "queries/"+name+".sql")
	if err != nil {
		panic(err)
	}
	return Render(string(b), schema)
}
