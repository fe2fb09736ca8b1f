package pgbinaries

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
)

// Of those that need the binaries at once one unpacks, and the others wait for it; no scratch folder is left.
func TestUnpackAtOnce(t *testing.T) {
	dir := leftover.Dir(t)
	folder := filepath.Join(dir, "binaries")
	abandoned := filepath.Join(dir, unpackPrefix+"1")
	require.NoError(t, os.Mkdir(abandoned, 0o700))
	require.NoError(t, os.Chtimes(abandoned, time.Time{}, time.Now().Add(-2*time.Hour)))
	var unpacked atomic.Int32
	unpack := func(_, target string) error {
		unpacked.Add(1)
		return os.MkdirAll(filepath.Join(target, "bin"), 0o755)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { assert.NoError(t, unpackOnce(t.Context(), folder, unpack)) })
	}
	group.Wait()
	assert.EqualValues(t, 1, unpacked.Load())
	found, err := trusted(folder)
	assert.True(t, found)
	require.NoError(t, err)
	assert.Equal(t, []string{"binaries", "binaries.lock"}, filesOnly(t, dir))
	require.NoError(t, os.RemoveAll(folder))

	unlock, err := lock(t.Context(), folder+".lock")
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, unpackOnce(cancelled, folder, unpack), "wait for a process that downloads it: context canceled")
	unlock()
	slow, cancel := context.WithCancel(t.Context())
	err = unpackOnce(slow, folder, func(string, string) error {
		cancel()
		<-time.After(100 * time.Millisecond) // as a download that does not hear of it
		return nil
	})
	require.ErrorContains(t, err, "from Maven Central: context canceled: install PostgreSQL")
	require.NoError(t, unpackOnce(t.Context(), folder, unpack))
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.Remove(folder+".lock"))
}

// Where the user's cache is read-only, the binaries come from it if they are there, and else from the temporary directory.
func TestEmbeddedFolderWithAReadOnlyCache(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	release := embeddedReleases[""]
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	require.NoError(t, os.Mkdir(filepath.Join(cache, "millrace"), 0o700))
	require.NoError(t, os.Symlink("/proc", filepath.Join(cache, embeddedCacheName))) // where not even root can write
	folder, err := embeddedFolder(nil, release)
	require.NoError(t, err)
	assert.Equal(t, os.TempDir(), filepath.Dir(folder))

	cache = t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	want := filepath.Join(cache, embeddedCacheName, string(release))
	folder, err = embeddedFolder(nil, release)
	require.NoError(t, err)
	assert.Equal(t, want, folder)
	assert.Empty(t, filesOnly(t, filepath.Dir(want)), "what tried whether it can write is gone")
}

// A download that fails says what to do instead.
func TestFetchFailed(t *testing.T) {
	err := fetchFailed(context.DeadlineExceeded)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "MILLRACE_POSTGRES_DSN")
}

// The temporary directory is everyone's: what another user may have written is not run.
func TestUnpackRefusesForeignFolder(t *testing.T) {
	dir := leftover.Dir(t)
	folder := filepath.Join(dir, "binaries")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.Chmod(folder, 0o777))
	_, err := trusted(folder)
	assert.ErrorContains(t, err, "remove it")
	require.NoError(t, os.Remove(folder))

	require.NoError(t, os.Symlink(t.TempDir(), folder))
	_, err = trusted(folder)
	assert.ErrorContains(t, err, "remove it")
	require.NoError(t, os.Remove(folder))
}

func filesOnly(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
