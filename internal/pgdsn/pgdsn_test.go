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
	} {
		_, err := pgdsn.Parse(dsn)
		assert.NoError(t, err, dsn)
	}
}

// Pgx takes all before the first "=" for the name of a parameter, which the server would have shown in its refusal.
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
		"postgres://labour:hunter2@db:port/labour",
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
