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
)

func postgresFromEnvironment(ctx context.Context) (*instance, error) {
	dsn, err := named(Postgres)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable[Postgres], err)
	}
	if err := askOnce(ctx, func(ctx context.Context) error { return askPostgres(ctx, dsn) }); err != nil {
		return nil, fmt.Errorf("ask the server that %s names: %w", variable[Postgres], err)
	}
	return &instance{
		info: Info{
			Service: Postgres,
			Source:  variable[Postgres],
			Address: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))),
			Real:    true,
		},
		value: dsn,
	}, nil
}

// startPostgres runs a new cluster from the binaries in bin.
func (h hooks) startPostgres(ctx context.Context, bin, source string, as *account) (*instance, error) {
	return h.retryPort(func(port int) (*instance, error) {
		r, err := newRoom(Postgres, as)
		if err != nil {
			return nil, err
		}
		// Any user of this machine can connect to the port, and a superuser can run programs: hence a password.
		password := rand.Text()
		if err := r.write("password", password); err != nil {
			return nil, errors.Join(err, r.discard())
		}
		w, err := watch(r,
			step{"TERM", initdb(bin, r)},
			step{"INT", postgresServer(bin, r, port)}, // SIGINT is PostgreSQL's fast shutdown: it ends the sessions
		)
		if err != nil {
			return nil, err
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		dsn := (&url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", password), Host: address,
			Path: "/postgres", RawQuery: "sslmode=disable",
		}).String()
		if err := w.await(ctx, func(ctx context.Context) error { return askPostgres(ctx, dsn) }); err != nil {
			return nil, err
		}
		return &instance{
			info:  Info{Service: Postgres, Source: source, Address: address, Real: true},
			value: dsn,
			stop:  w.stop,
		}, nil
	})
}

func initdb(bin string, r *room) []string {
	return []string{
		filepath.Join(bin, "initdb"), "--pgdata=" + r.path("data"), "--no-sync", "--encoding=UTF8", "--locale=C",
		"--username=postgres", "--auth=scram-sha-256", "--pwfile=" + r.path("password"),
	}
}

// postgresServer trades durability against a crash of the machine for speed. What a test can observe of a commit
// (synchronous_commit, full_page_writes, autovacuum) stays as PostgreSQL ships it.
func postgresServer(bin string, r *room, port int) []string {
	sockets := r.dir
	if len(sockets) > 85 { // a socket's path has at most 103 bytes on macOS
		sockets = ""
	}
	argv := []string{filepath.Join(bin, "postgres"), "-D", r.path("data")}
	for _, setting := range []string{
		"port=" + strconv.Itoa(port),
		"listen_addresses=127.0.0.1",
		"unix_socket_directories=" + sockets,
		"fsync=off",
		"max_connections=300",
		"wal_level=logical",
	} {
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
