package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// PgBouncer is a connection pooler in front of a Server. Like a Stack, it leaves nothing behind.
type PgBouncer struct {
	watchdog *watchdog.Watchdog
	dsn      string
}

// DSN returns a URL for pgx and libpq: the server's, through the pooler. A client must not use prepared statements; with pgx, set
// pgx.QueryExecModeExec.
func (b *PgBouncer) DSN() string { return b.dsn }

// Stop ends the pooler and waits until everything of it is gone. Call it once.
func (b *PgBouncer) Stop() error { return b.watchdog.Stop() }

// PgBouncer runs a pooler in transaction mode, with at most the given number of connections to the server. It returns once the server
// answers through it. Its error wraps ErrAbsent if PgBouncer is not installed.
func (s *Server) PgBouncer(ctx context.Context, connections int) (*PgBouncer, error) {
	bouncer, err := s.pgBouncer(ctx, connections)
	if err != nil {
		return nil, fmt.Errorf("devstack: start PgBouncer: %w", err)
	}
	return bouncer, nil
}

func (s *Server) pgBouncer(ctx context.Context, connections int) (*PgBouncer, error) {
	as, err := machine.Unprivileged()
	if err != nil {
		return nil, err
	}
	program, err := pgBouncerProgram(as)
	if err != nil {
		return nil, err
	}
	dsn, err := url.Parse(s.dsn)
	if err != nil {
		return nil, err
	}
	return retryPort(hooks{}, func(port int) (*PgBouncer, error) {
		r, err := watchdog.NewRoom("pgbouncer", as)
		if err != nil {
			return nil, err
		}
		err = errors.Join(
			r.Write("users", fmt.Sprintf("\"postgres\" %q\n", s.cluster.password)),
			r.Write("settings", fmt.Sprintf(pgBouncerSettings, dsn.Port(), port, r.Path("users"), connections)),
		)
		if err != nil {
			return nil, errors.Join(err, r.Discard())
		}
		w, err := watchdog.Watch(r, watchdog.Step{Signal: "TERM", Argv: []string{program, r.Path("settings")}})
		if err != nil {
			return nil, err
		}
		front := *dsn
		front.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		bouncer := &PgBouncer{watchdog: w, dsn: front.String()}
		// pgx prepares a statement only if it has arguments, so this query works.
		if err := w.Await(ctx, func(ctx context.Context) error { return askPostgres(ctx, bouncer.dsn) }); err != nil {
			return nil, err
		}
		return bouncer, nil
	})
}

// pgBouncerSettings has only what the pooler needs to run here: clients must not rely on a setting that a service's pooler lacks.
const pgBouncerSettings = `[databases]
* = host=127.0.0.1 port=%s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
`

// pgBouncerProgram finds PgBouncer. Debian installs it in a folder that only root has on the PATH.
func pgBouncerProgram(as *machine.Account) (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		path, err := exec.LookPath(name)
		if err == nil && as.Reaches(path) {
			return path, nil
		}
	}
	return "", machine.Absent("no pgbouncer on the PATH %s or in /usr/sbin", strings.TrimSpace(os.Getenv("PATH")))
}
