package service

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "labour", "Labour-2", "acme.labour_eu", strings.Repeat("a", 100)} {
		require.NoError(t, Validate(name), name)
	}
	for _, name := range []string{"", "/", "a/b", "2", "-a", "a b", "ä", "a\n", "a\x00", strings.Repeat("a", 101)} {
		require.ErrorContains(t, Validate(name), "Service is ", name)
	}
}

// "a" has "b/c", and no "a/b" has "c".
func TestScopedNamesDiffer(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "a/b/c", Scoped("a", "b/c"))
	require.Error(t, Validate("a/b"))
}
