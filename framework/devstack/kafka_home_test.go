package devstack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The newest Apache Kafka runs that was fetched without the variable, unless that names another one.
func TestFindKafka(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HOME", cache)
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("MILLRACE_KAFKA_HOME", "")
	t.Setenv(kafkaVersionVariable, "")
	_, err := findKafka()
	require.ErrorIs(t, err, ErrAbsent)

	base, err := os.UserCacheDir()
	require.NoError(t, err)
	for folder, version := range map[string]string{
		"kafka-4.4.0": "4.4.0", "kafka-4.10.0": "4.10.0", "kafka/5.0.0": "5.0.0", "kafka/3.9.2": "3.9.2",
	} {
		dir := filepath.Join(base, "millrace", filepath.FromSlash(folder))
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kafka_2.13-"+version+".jar"), nil, 0o600))
	}
	home, err := findKafka()
	require.NoError(t, err)
	assert.Equal(t, "4.10.0", home.version)

	t.Setenv(kafkaVersionVariable, "3.9.2")
	home, err = findKafka()
	require.NoError(t, err)
	assert.Equal(t, "3.9.2", home.version)

	t.Setenv(kafkaVersionVariable, "3.9.1")
	_, err = findKafka()
	require.NotErrorIs(t, err, ErrAbsent, "no other one stands in")
	assert.ErrorContains(t, err, "MILLRACE_KAFKA_VERSION is 3.9.1")

	t.Setenv("MILLRACE_KAFKA_HOME", filepath.Join(base, "millrace", "kafka-4.4.0"))
	_, err = findKafka()
	require.ErrorContains(t, err, "MILLRACE_KAFKA_VERSION is 3.9.1", "the folder's version must not run in its name")
	assert.ErrorContains(t, err, "which holds 4.4.0: unset one of them")
	t.Setenv(kafkaVersionVariable, "4.4.0")
	home, err = findKafka()
	require.NoError(t, err)
	assert.Equal(t, "4.4.0", home.version)
}
