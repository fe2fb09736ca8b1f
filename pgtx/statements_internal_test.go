package pgtx

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestStatementsOfAText(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"":                                      nil,
		" ; -- x\n ; /* y */":                   nil,
		"select 1":                              {"select 1"},
		" select 1 ; /* ; */ select 2;":         {"select 1 ", "select 2"},
		"select ';', 'it''s;' ; rollback":       {"select ';', 'it''s;' ", "rollback"},
		`select E'\';', e'\\'; commit`:          {`select E'\';', e'\\'`, "commit"},
		`select name'\'; commit`:                {`select name'\'`, "commit"},
		`select "a;""b"; commit`:                {`select "a;""b"`, "commit"},
		"select 1 -- ; it's\n; commit":          {"select 1 -- ; it's\n", "commit"},
		"/* /* nested; */ */ commit":            {"commit"},
		"/* open; commit":                       nil,
		"do $$ begin; end $$; commit":           {"do $$ begin; end $$", "commit"},
		"do $é1$ ; $$ ; $é1$; commit":           {"do $é1$ ; $$ ; $é1$", "commit"},
		"select a$b$ ; commit":                  {"select a$b$ ", "commit"},
		"select $1; commit":                     {"select $1", "commit"},
		"do $$ open; commit":                    {"do $$ open; commit"},
		"select 'open; commit":                  {"select 'open; commit"},
		"create function f() begin atomic; end": {"create function f() begin atomic; end"},
	} {
		assert.Equal(t, want, slices.Collect(statements(sql)), sql)
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, " END": true, "Abort work": true, "rollback": true, "rollback work": true, "rollback and chain": true,
		"rollback to a": false, "rollback work to savepoint a": false, "rollback /* b */ transaction to a": false,
		"select 1; rollback; begin": true, "commit; begin": true, "select 1; rollback to a; select 2": false,
		"/* /* */ */ commit": true, "prepare transaction 'x'": true, "prepare x as select 1": false,
		"select 'x; commit'": false, "select 1": false, "": false,
	} {
		assert.Equal(t, want, ends(sql), sql)
	}
}
