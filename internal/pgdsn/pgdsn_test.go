package pgdsn_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/pgdsn"
)

func TestParse(t *testing.T) {
	for _, dsn := range []string{
		"",
		"postgres://labour:hunter2@db/labour?sslmode=disable&search_path=a&my.setting=1&pool_max_conns=3",
		"postgresql://labour:hunter2@db/labour",
		"host=db user=labour password='hunter2' application_name=bookings",
		"host=/var/run/postgresql user=labour password=a;b=c/@ dbname=labour",
		"postgres://labour:hunter2%40%2F?#@db1,[::1]:5433/labour?application_name=a@b",
		"postgres:///labour?host=/var/run/postgresql&user=labour",
		"postgres://db",
		"host=labour_db user=labour password=hunter2",
		"host=db application_name=a;b=c,d=e",
		"host=@labour user=labour password=hunter2",
	} {
		_, err := pgdsn.Parse(dsn)
		assert.NoError(t, err, dsn)
	}
}

// Pgx takes a part of these for the name of a host, a database or a parameter, and what it connects to would show it.
func TestParseWhatOnlyLooksLikeKeysAndValues(t *testing.T) {
	for _, dsn := range []string{
		"postgre://labour:hunter2@db/labour?sslmode=disable",
		"mysql://labour:hunter2@db/labour?a=b",
		"POSTGRES://labour:hunter2@db/labour?sslmode=disable",
		`"postgres://labour:hunter2@db/labour?sslmode=disable"`,
		"'postgres://labour:hunter2@db/labour?sslmode=disable'",
		"=postgres://labour:hunter2@db/labour?sslmode=disable",
		`"host=db password=hunter2"`,
		"\ufeffpostgres://labour:hunter2@db/labour?sslmode=disable",
		"postgres://labour:pass@hunter2@db/labour",
		"postgres://labour:/hunter2@db/labour",
		"postgres://labour:12/hunter2@db/labour",
		"postgres://labour:12/x?a=hunter2@db/labour",
		"host=db;user=labour;password=hunter2",
		"host=db,user=labour,password=hunter2",
		"host=db user=labour;password=hunter2",
		"dbname=labour;password=hunter2 host=db",
		"application_name=labour;password=hunter2 host=db",
		"host=/run;password=hunter2",
		"host",
	} {
		_, err := pgdsn.Parse(dsn)
		require.ErrorContains(t, err, "no connection string: want postgres://", dsn)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestParseNamesTheFileThatIsMissing(t *testing.T) {
	_, err := pgdsn.Parse("postgres://labour:hunter2@db/labour?sslmode=verify-full&sslrootcert=/nowhere/ca.pem")
	assert.EqualError(t, err, "naming a file: want one that can be read: open /nowhere/ca.pem: no such file or directory")
}

// What pgx refuses by name is named, without its value.
func TestParseNamesTheSetting(t *testing.T) {
	for dsn, name := range map[string]string{
		"host=db password=hunter2 sslmode=required":                          "sslmode",
		"host=db password=hunter2 connect_timeout=5s":                        "connect_timeout",
		"host=db password=hunter2 pool_max_conns=hunter2":                    "pool_max_conns",
		"host=db password=hunter2 port=hunter2":                              "port",
		"postgres://labour:hunter2@db:port/labour":                           "port",
		"postgres://labour:hunter2@db/labour?service=a&servicefile=/hunter2": "service",
		"host=db password=hunter2 target_session_attrs=hunter2":              "target_session_attrs",
	} {
		_, err := pgdsn.Parse(dsn)
		assert.EqualError(t, err, "a connection string with a wrong "+name+": want one that PostgreSQL's clients take, there or in the PG… variable that stands for it", dsn)
	}
}
