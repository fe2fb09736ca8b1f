package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/pgbinaries"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
	"github.com/millrace-go/millrace/internal/pgdsn"
)

func postgresFromEnvironment(ctx context.Context) (*instance, error) {
	dsn, err := named(Postgres)
	if err != nil {
		return nil, err
	}
	parsed, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("%s is %w", variable[Postgres], err)
	}
	config := parsed.ConnConfig
	if err := askOnce(ctx, func(ctx context.Context) error { return askPostgres(ctx, dsn) }); err != nil {
		return nil, fmt.Errorf("ask the server that %s names: %w", variable[Postgres], err)
	}
	address := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	return &instance{info: namedInfo(Postgres, address, false), value: dsn}, nil
}

// installedBinaries finds an installed PostgreSQL. If major is not "", it must be of that major version.
func (h hooks) installedBinaries(ctx context.Context, major string) (pgbinaries.Binaries, error) {
	switch {
	case h.skipInstalled:
		return pgbinaries.Binaries{}, machine.Absent("installed binaries are not wanted")
	case h.postgresBin != "":
		return pgbinaries.Installed(ctx, major, []string{h.postgresBin})
	}
	return pgbinaries.Installed(ctx, major, pgbinaries.Folders())
}

// postgresFrom returns a source for the stack: a new cluster, run with the binaries that find returns.
func (h hooks) postgresFrom(find func(ctx context.Context, major string) (pgbinaries.Binaries, error)) func(context.Context) (*instance, error) {
	return func(ctx context.Context) (*instance, error) {
		major, err := postgresRelease("")
		if err != nil {
			return nil, err
		}
		found, err := find(ctx, major)
		if err != nil {
			return nil, err
		}
		// Any user of this machine can connect to the port, and a superuser can run programs, so the server needs a password.
		server, err := h.startPostgres(ctx, cluster{Binaries: found, password: rand.Text(), fill: initdb})
		if err != nil {
			return nil, err
		}
		return &instance{
			info:  Info{Service: Postgres, Source: found.Source, Address: server.address, Real: true},
			value: server.dsn,
			stop:  server.watchdog.Stop,
		}, nil
	}
}

// cluster describes a server to be started.
type cluster struct {
	pgbinaries.Binaries
	password string   // of the superuser
	settings []string // name=value, after the common ones
	fill     func(c cluster, r *watchdog.Room) (argv []string, err error)
}

// startPostgres runs a new cluster.
func (h hooks) startPostgres(ctx context.Context, c cluster) (*Server, error) {
	return retryPort(h, func(port int) (*Server, error) {
		r, err := watchdog.NewRoom(string(Postgres), c.As)
		if err != nil {
			return nil, err
		}
		fill, err := c.fill(c, r)
		if err != nil {
			return nil, errors.Join(err, r.Discard())
		}
		w, err := watchdog.Watch(r,
			watchdog.Step{Signal: "TERM", Argv: fill},
			watchdog.Step{Signal: "INT", Argv: c.serve(r, port)}, // SIGINT is PostgreSQL's fast shutdown, which ends the sessions
		)
		if err != nil {
			return nil, err
		}
		server := &Server{cluster: c, watchdog: w, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
		server.dsn = (&url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", c.password), Host: server.address,
			Path: "/postgres", RawQuery: "sslmode=disable",
		}).String()
		if err := w.Await(ctx, server.answers); err != nil {
			return nil, err
		}
		return server, nil
	})
}

// initdb fills the data folder with a new cluster.
func initdb(c cluster, r *watchdog.Room) ([]string, error) {
	return []string{
		filepath.Join(c.Bin, "initdb"), "--pgdata=" + r.Path("data"), "--no-sync", "--encoding=UTF8", "--locale=C",
		"--username=postgres", "--auth=scram-sha-256", "--pwfile=" + r.Path("password"),
	}, r.Write("password", c.password)
}

// serve gives up durability after a crash of the machine, for speed. Settings whose effect on a commit a test can observe
// (synchronous_commit, full_page_writes, autovacuum) keep PostgreSQL's defaults.
func (c cluster) serve(r *watchdog.Room, port int) []string {
	sockets := r.Dir
	if len(sockets) > 85 { // on macOS, the path of a socket has at most 103 bytes
		sockets = ""
	}
	argv := []string{filepath.Join(c.Bin, "postgres"), "-D", r.Path("data")}
	for _, setting := range append([]string{
		"port=" + strconv.Itoa(port),
		"listen_addresses=127.0.0.1",
		"unix_socket_directories=" + sockets,
		"fsync=off", "track_commit_timestamp=on",
		"millrace.development=on", // "millrace doctor" checks it
		"max_connections=600",
		"wal_level=logical",
		"max_replication_slots=50", // tests run side by side
		"max_wal_senders=50",
	}, c.settings...) {
		argv = append(argv, "-c", setting)
	}
	return argv
}

// askPostgres returns nil if the server runs a statement.
func askPostgres(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statement's error matters
	_, err = conn.Exec(ctx, "select 1")
	return err
}
