// Package pgbinaries finds the PostgreSQL binaries to run: installed ones, or those of the embedded-postgres project.
package pgbinaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

// embeddedReleases maps PostgreSQL's major versions to releases of the embedded-postgres project. "" is the default, for a machine
// without PostgreSQL.
var embeddedReleases = map[string]embeddedpostgres.PostgresVersion{
	"":   embeddedpostgres.V18,
	"15": embeddedpostgres.V15,
	"16": embeddedpostgres.V16,
	"17": embeddedpostgres.V17,
	"18": embeddedpostgres.V18,
}

// Supported reports whether Millrace supports the major version. "" stands for any version.
func Supported(major string) bool { _, ok := embeddedReleases[major]; return ok }

// Embedded returns the binaries of the embedded-postgres project. At the first use on a machine it downloads them from Maven Central. The
// project's own Start cannot be used here: it runs initdb as the current user, which fails as root, and it leaves the server behind when
// the process is killed.
func Embedded(ctx context.Context, major string) (Binaries, error) {
	release := embeddedReleases[major]
	as, err := machine.Unprivileged()
	if err != nil {
		return Binaries{}, err
	}
	folder, err := embeddedFolder(as, release)
	if err != nil {
		return Binaries{}, err
	}
	unpack := func(scratch, target string) error { return unpack(release, scratch, target) }
	if err := unpackOnce(ctx, folder, unpack); err != nil {
		return Binaries{}, fmt.Errorf("get the binaries of embedded-postgres: %w", err)
	}
	bin := filepath.Join(folder, "bin")
	version, err := Version(ctx, bin, as)
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{Bin: bin, Version: version, Source: fmt.Sprintf("PostgreSQL %s of embedded-postgres", version), As: as}, nil
}

// embeddedFolder returns the folder for the binaries, normally in the user's cache. It is in the temporary directory if the cache cannot
// be used: root's cache is closed to the user that runs the binaries, and in a container the cache may be missing or read-only.
func embeddedFolder(as *machine.Account, release embeddedpostgres.PostgresVersion) (string, error) {
	if cache, err := os.UserCacheDir(); as == nil && err == nil { // a read-only cache may hold them
		folder := filepath.Join(cache, embeddedCacheName, string(release))
		if found, err := trusted(folder); found && err == nil {
			return folder, nil
		}
	}
	if cache, err := embeddedCache(); as == nil && err == nil {
		return filepath.Join(cache, string(release)), nil
	}
	base, err := as.TempDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, fmt.Sprintf("millrace-embedded-postgres-%s-%d", release, os.Geteuid())), nil
}

const embeddedCacheName = "millrace/embedded-postgres"

// embeddedCache returns a writable folder for downloaded archives and for what is unpacked from them.
func embeddedCache() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, embeddedCacheName)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	probe, err := os.MkdirTemp(cache, unpackPrefix)
	if err != nil {
		return "", err
	}
	return cache, os.Remove(probe)
}

// unpackOnce fills the folder if it does not exist. If several processes need it at once, as the packages of one test run do, one
// downloads and unpacks, and the others wait. It unpacks beside the folder and renames, so an existing folder is always complete.
func unpackOnce(ctx context.Context, folder string, unpack func(scratch, target string) error) error {
	if found, err := trusted(folder); found || err != nil {
		return err
	}
	unlock, err := lock(ctx, folder+".lock")
	if err != nil {
		return fmt.Errorf("wait for a process that downloads it: %w", err)
	}
	defer unlock()
	if found, err := trusted(folder); found || err != nil {
		return err
	}
	removeAbandoned(filepath.Dir(folder))
	scratch, err := os.MkdirTemp(filepath.Dir(folder), unpackPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // a scratch folder in the temporary directory
	unpacked := filepath.Join(scratch, "unpacked")

	ended := make(chan error, 1)
	go func() { ended <- unpack(scratch, unpacked) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = fetchFailed(ctx.Err())
		// The project's download takes no context and may hang forever; unpacking takes a few seconds. If it hangs, its goroutine ends
		// with the process, and a later call removes what it still writes.
		select {
		case <-ended: //nolint:errcheck // its result does not matter after cancellation
		case <-time.After(cancelTimeout):
		}
		return err
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return err
	}
	return os.Rename(unpacked, folder)
}

// lock waits until this process alone holds the file, which is not removed. The lock ends with the process.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, file.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		}
	}
}

func fetchFailed(err error) error {
	return fmt.Errorf("fetch PostgreSQL from Maven Central: %w: install PostgreSQL (Debian package postgresql), or name a running one by %s", err, "MILLRACE_POSTGRES_DSN")
}

const (
	unpackPrefix  = "millrace-unpack-"
	cancelTimeout = 5 * time.Second
)

// removeAbandoned removes what was left by processes that were killed while they unpacked. Unpacking never takes an hour.
func removeAbandoned(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, unpackPrefix+"*")) // a bad pattern finds nothing
	for _, path := range found {
		info, err := os.Lstat(path)
		if err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(path) // another user's folder stays
		}
	}
}

// trusted reports whether the folder exists. It refuses a folder that another user may have created: everyone can write to the temporary
// directory, and we run what the folder holds.
func trusted(folder string) (bool, error) {
	info, err := os.Lstat(folder)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return false, fmt.Errorf("%s is not a folder that only user %d can write to: remove it", folder, os.Geteuid())
	}
	return true, nil
}

// unpack makes the project's Start fail right after it has unpacked the binaries; there is no other way to only unpack. The data folder
// contains a PG_VERSION of the right release, so Start skips initdb. The server that it then starts ends at once, because the folder
// holds nothing else (and because it refuses to run as root).
func unpack(release embeddedpostgres.PostgresVersion, scratch, target string) error {
	data := filepath.Join(scratch, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	major, _, _ := strings.Cut(string(release), ".")
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return err
	}
	cache, err := embeddedCache()
	if err != nil { // as in a container without a home directory, or with a read-only one
		cache = filepath.Join(scratch, "cache")
	}
	port, err := machine.FreePort()
	if err != nil {
		return err
	}
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(release).
		Port(uint32(port)).
		CachePath(cache).
		BinariesPath(target).
		RuntimePath(filepath.Join(scratch, "runtime")).
		DataPath(data).
		Logger(logRemover{})).Start()
	// The download uses the default client, whose idle connections would look like leaked goroutines for 90 seconds.
	http.DefaultClient.CloseIdleConnections()
	if _, statErr := os.Stat(filepath.Join(target, "bin", "postgres")); statErr == nil {
		return nil
	} else if err == nil {
		err = statErr
	}
	return fetchFailed(err)
}

// logRemover is given to embedded-postgres as the writer for its log. The project never removes the log's file from the temporary
// directory, and only this writer learns its name.
type logRemover struct{}

// Write discards the log.
func (logRemover) Write(p []byte) (int, error) { return len(p), nil }

// ReadFrom is called by io.Copy with the open log.
func (logRemover) ReadFrom(source io.Reader) (int64, error) {
	if file, ok := source.(interface{ Name() string }); ok {
		return 0, os.Remove(file.Name())
	}
	return io.Copy(io.Discard, source)
}
