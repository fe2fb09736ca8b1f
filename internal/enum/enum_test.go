package enum_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/enum"
)

type resources int

func (r resources) String() string {
	if r < 3 {
		return []string{"CreateMissing", "CheckOnly", "LZ4"}[r]
	}
	return fmt.Sprintf("resources(%d)", int(r))
}

func TestWordsOfAnEnumeration(t *testing.T) {
	t.Parallel()
	for r, want := range []string{"create_missing", "check_only", "lz4"} {
		word, err := enum.Text[resources](resources(r), 0, 1, 2)
		require.NoError(t, err)
		assert.Equal(t, want, string(word))
		read := resources(-1)
		require.NoError(t, enum.Read(&read, word, 0, 1, 2))
		assert.Equal(t, resources(r), read)
	}
	_, err := enum.Text[resources](3, 0, 1, 2)
	assert.EqualError(t, err, "resources(3) has no word: want create_missing, check_only or lz4")
	read := resources(1)
	assert.EqualError(t, enum.Read(&read, []byte("CreateMissing"), 0, 1), "want create_missing or check_only")
	assert.Equal(t, resources(1), read)
}

func TestWord(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"MaxInFlight": "max_in_flight", "ProjectID": "project_id", "DSN": "dsn", "TLS": "tls", "LeaseTTL": "lease_ttl", "CAFile": "ca_file", "HTTP": "http",
	} {
		assert.Equal(t, want, enum.Word(name))
	}
}
