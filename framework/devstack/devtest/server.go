package devtest

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/notrun"
)

// Postgres runs a PostgreSQL server for this test alone, for tests that would disturb a shared one: crashes, settings, another release.
// It takes about two seconds and is stopped when the test ends. If the test fails, the end of its log is shown.
func Postgres(t testing.TB, cfg devstack.ServerConfig) *devstack.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := devstack.StartServer(ctx, cfg)
	return owned(t, server, err)
}

// Standby runs a streaming replica of the server and stops it when the test ends.
func Standby(t testing.TB, server *devstack.Server, cfg devstack.ServerConfig) *devstack.Server {
	t.Helper()
	standby, err := server.Standby(t.Context(), cfg)
	return owned(t, standby, err)
}

// ownServer is a server that stops with its test.
type ownServer interface {
	Source() string
	LogTail() string
	Stop() error
}

func owned[S ownServer](t testing.TB, server S, err error) S {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s ends with:\n%s", server.Source(), server.LogTail())
		}
		if err := server.Stop(); err != nil {
			t.Errorf("stop %s: %v", server.Source(), err)
		}
	})
	return server
}

// PgBouncer runs PgBouncer in transaction mode in front of the server, with the given number of server connections, and stops it when the
// test ends. If PgBouncer is not installed, the test is skipped with that reason; MILLRACE_REQUIRE_REAL=pgbouncer makes that a failure.
func PgBouncer(t testing.TB, server *devstack.Server, connections int) *devstack.PgBouncer {
	t.Helper()
	bouncer, err := server.PgBouncer(t.Context(), connections)
	skipAbsent(t, err, "pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bouncer.Stop(); err != nil {
			t.Errorf("stop PgBouncer: %v", err)
		}
	})
	return bouncer
}

// Tool returns a command for one of PostgreSQL's programs, such as pg_dump, in the server's release if that has the program. If the
// program is not installed, the test is skipped with that reason; MILLRACE_REQUIRE_REAL=postgres makes that a failure.
func Tool(t testing.TB, server *devstack.Server, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := server.Tool(name)
	skipAbsent(t, err, string(devstack.Postgres))
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), path, args...)
}

// SmallDisk mounts a file system of the given size in megabytes, which a server can fill, and unmounts it when the test ends. Call it
// before the server is started. If this process may not mount, the test is skipped with that reason; MILLRACE_REQUIRE_REAL=mount makes
// that a failure.
func SmallDisk(t testing.TB, megabytes int) *devstack.Disk {
	t.Helper()
	disk, err := devstack.StartDisk(t.Context(), megabytes)
	skipAbsent(t, err, "mount")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Stop(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return disk
}

// skipAbsent skips the test if what it needs is not on this machine.
func skipAbsent(t testing.TB, err error, name string) {
	t.Helper()
	switch {
	case !errors.Is(err, devstack.ErrAbsent):
	case devstack.Required(name):
		t.Fatalf("MILLRACE_REQUIRE_REAL asks for %s: %v", name, err)
	default:
		notrun.Skip(t, devstack.Need(name), err)
	}
}
