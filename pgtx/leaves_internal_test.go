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
