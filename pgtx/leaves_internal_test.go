package pgtx

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeaves(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"set local a.b = 1": true, " -- x\n SET role x": true, "select 1; reset all": true, "set constraints all deferred": false,
		"create temp table a (n int)": true, "create or replace local temporary view a as select 1": true, "create table temp (n int)": false,
		"select 1 into temp a": true, "insert into temp select 1": false, "with a as (select 1) select * into  temporary b from a": true,
		"update a set b = 1": false, "select Set_Config('a.b', '', true)": true, "drop table pg_temp.a": true, "declare c cursor for select 1": true,
		"do $$ begin end $$": true, "select 1": false, "execute set_tenant('a')": true, "set_tenant": true, "update pg_settings set setting = 'a'": true, "select setting from pg_settings": false, "": false, "select a_b, set_confi": false,
	} {
		assert.Equal(t, want, leaves(sql), sql)
	}
}

func TestOutlives(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"set search_path = x": true, "SET ROLE x": true, "select 1; set session statement_timeout = 1": true, "set /* x */ time zone 'UTC'": true,
		"set local search_path = x": false, "set constraints all deferred": false, "set transaction read only": false, "reset all": false, "select 'set x'": false,
		"select set_config('a.b', $1, false)": true, "select set_config('a.b', $1, $2)": true, "select set_config('a.b', 'c', true)": false,
		"select set_config('a.b', $1, is_local => true)": false, "select set_config('a.b', 'c', 't')": false, "update a set b = 1": false, "": false,
		"select set_config('a.b', 'c', true), set_config('a.c', 'd', false)": true, "select Set_Config('a.b', 'c', true), set_config('a.c', 'd', TRUE )": false,
	} {
		assert.Equal(t, want, outlives(sql), sql)
	}
}
