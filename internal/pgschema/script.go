package pgschema

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// An arbitrary number, which Millrace uses in every database.
	lockLine = `select pg_advisory_xact_lock(7811887411823467)`

	createSchema = `create schema {schema}`
	createTable  = `create table {schema}.migration (
    component text not null, version int not null, name text not null,
    applied_at timestamptz not null default now(), primary key (component, version))`
	// The oldest version of the component whose programs work with this one; null: only programs that know this one.
	addOldest = `alter table {schema}.migration add column if not exists oldest int`
)

// part is one step of a script.
type part struct{ what, sql string }

// script returns the statements from one version to another, up or down. They run after prepare.
func (m *Migrator) script(steps []step, from, to int) (parts []part) {
	add := func(v int, format string, args ...any) {
		parts = append(parts, part{
			what: fmt.Sprintf("migration %d (%s)", v, steps[v-1].name),
			sql:  Render(fmt.Sprintf(format, args...), m.schema),
		})
	}
	for v := from + 1; v <= to; v++ {
		s := steps[v-1]
		add(v, "%s", s.up)
		oldest := "null"
		if s.oldest > 0 {
			oldest = fmt.Sprint(s.oldest)
		}
		add(v, `insert into {schema}.migration (component, version, name, oldest) values (%s, %d, %s, %s)`,
			literal(m.line.Component), v, literal(s.name), oldest)
	}
	for v := from; v > to; v-- {
		add(v, "%s", steps[v-1].down)
		add(v, `delete from {schema}.migration where component = %s and version = %d`, literal(m.line.Component), v)
	}
	return parts
}

// fillOldest sets the column for migrations that were applied before it existed.
func fillOldest(component string, steps []step) string {
	var sql strings.Builder
	for i, s := range steps {
		if s.oldest > 0 {
			fmt.Fprintf(&sql, "update {schema}.migration set oldest = %d where component = %s and version = %d;\n", s.oldest, literal(component), i+1)
		}
	}
	return sql.String()
}

// SQL returns what Up or Down would run to migrate from one version to another: one transaction, for psql. It does not connect to a
// database, and does not check whether events would be lost.
func (m *Migrator) SQL(from, to int) (string, error) {
	steps, err := m.line.steps()
	if err != nil {
		return "", err
	}
	if n := len(steps); from < 0 || from > n || to < 0 || to > n {
		return "", fmt.Errorf("migrate %s from version %d to %d: want 0 to %d", m.line.Component, from, to, n)
	}
	if from == to {
		return "", nil
	}
	head := []string{
		fmt.Sprintf("-- %s in schema %s: from version %d to %d.", m.line.Component, m.schema, from, to),
		"begin;", lockLine + ";", "set local lock_timeout = '2s';",
	}
	if from == 0 {
		head = append(head, strings.Replace(createSchema, "schema ", "schema if not exists ", 1)+";",
			strings.Replace(createTable, "table ", "table if not exists ", 1)+";")
	}
	if to > from {
		head = append(head, addOldest+";")
	}
	var sql strings.Builder
	sql.WriteString(Render(strings.Join(head, "\n"), m.schema) + "\n")
	for _, p := range m.script(steps, from, to) {
		fmt.Fprintf(&sql, "\n%s\n", cmp.Or(terminated(p.sql), "-- "+p.what))
	}
	sql.WriteString("\ncommit;\n")
	return sql.String(), nil
}

func terminated(sql string) string {
	if sql = strings.TrimSpace(sql); sql == "" || strings.HasSuffix(sql, ";") {
		return sql
	}
	return sql + ";"
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func isLockTimeout(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}

// Newest returns the version that Up migrates to.
func (m *Migrator) Newest() int {
	steps, _ := m.line.steps() // SQL reports the error
	return len(steps)
}
