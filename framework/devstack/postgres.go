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

// binaries are a PostgreSQL to run.
type binaries struct {
	bin     string
	version string
	source  string // for people
	as      *machine.Account
}

// postgresFrom is a source for the stack: a new cluster, run by the binaries that find finds.
func (h hooks) postgresFrom(find func(ctx context.Context, major string) (binaries, error)) func(context.Context) (*instance, error) {
	return func(ctx context.Context) (*instance, error) {
		major, err := postgresRelease("")
		if err != nil {
			return nil, err
		}
		found, err := find(ctx, major)
		if err != nil {
			return nil, err
		}
		// Any user of this machine can connect to the port, and a superuser can run programs: hence a password.
		server, err := h.startPostgres(ctx, cluster{binaries: found, password: rand.Text(), fill: initdb})
		if err != nil {
			return nil, err
		}
		return &instance{
			info:  Info{Service: Postgres, Source: found.source, Address: server.address, Real: true},
			value: server.dsn,
			stop:  server.watchdog.stop,
		}, nil
	}
}

// cluster is what a server is made of.
type cluster struct {
	binaries
	password string   // of the superuser
	settings []string // name=value, after the common ones
	fill     func(c cluster, r *room) (argv []string, err error)
}

// startPostgres runs a new cluster.
func (h hooks) startPostgres(ctx context.Context, c cluster) (*Server, error) {
	return retryPort(h, func(port int) (*Server, error) {
		r, err := newRoom(string(Postgres), c.as)
		if err != nil {
			return nil, err
		}
		fill, err := c.fill(c, r)
		if err != nil {
			return nil, errors.Join(err, r.discard())
		}
		w, err := watch(r,
			step{"TERM", fill},
			step{"INT", c.serve(r, port)}, // SIGINT is PostgreSQL's fast shutdown: it ends the sessions
		)
		if err != nil {
			return nil, err
		}
		server := &Server{cluster: c, watchdog: w, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
		server.dsn = (&url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", c.password), Host: server.address,
			Path: "/postgres", RawQuery: "sslmode=disable",
		}).String()
		if err := w.await(ctx, server.answers); err != nil {
			return nil, err
		}
		return server, nil
	})
}

// initdb fills the data folder with a new cluster.
func initdb(c cluster, r *room) ([]string, error) {
	return []string{
		filepath.Join(c.bin, "initdb"), "--pgdata=" + r.path("data"), "--no-sync", "--encoding=UTF8", "--locale=C",
		"--username=postgres", "--auth=scram-sha-256", "--pwfile=" + r.path("password"),
	}, r.write("password", c.password)
}

// serve trades durability against a crash of the machine for speed. What a test can observe of a commit
// (synchronous_commit, full_page_writes, autovacuum) stays as PostgreSQL ships it.
func (c cluster) serve(r *room, port int) []string {
	sockets := r.dir
	if len(sockets) > 85 { // a socket's path has at most 103 bytes on macOS
		sockets = ""
	}
	argv := []string{filepath.Join(c.bin, "postgres"), "-D", r.path("data")}
	for _, setting := range append([]string{
		"port=" + strconv.Itoa(port),
		"listen_addresses=127.0.0.1",
		"unix_socket_directories=" + sockets,
		"fsync=off",
		"millrace.development=on", // "millrace doctor" asks for it
		"max_connections=600",
		"wal_level=logical",
	}, c.settings...) {
		argv = append(argv, "-c", setting)
	}
	return argv
}

// askPostgres reports whether the server runs a statement.
func askPostgres(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statement's error counts
	_, err = conn.Exec(ctx, "select 1")
	return err
}
