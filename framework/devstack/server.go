package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/pgbinaries"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// ServerConfig configures a Server. Its zero value is ready for use.
type ServerConfig struct {
	// Release is a major version of PostgreSQL, OldestPostgres to NewestPostgres. If it is not installed, the binaries of
	// embedded-postgres are used. Default: the version that a stack runs.
	Release string

	// Settings are put on the server's command line, after a stack's own settings. Unless Settings change it, fsync is off: data survives
	// a crash of the server, not one of the machine.
	Settings map[string]string
}

// Server is a PostgreSQL server for one caller, which may be crashed and started again. Like a Stack, it leaves nothing behind. Its
// methods must not be called concurrently.
type Server struct {
	cluster  cluster
	watchdog *watchdog.Watchdog
	address  string
	dsn      string

	stopOnce sync.Once
	stopErr  error
}

// StartServer runs a new cluster and returns once it answers. The caller must stop it.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	h := hooks{freePort: machine.QuietPort}
	release, err := postgresRelease(cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("devstack: start a PostgreSQL server: %w", err)
	}
	found, err := h.installedBinaries(ctx, release)
	if errors.Is(err, ErrAbsent) && ctx.Err() == nil {
		found, err = pgbinaries.Embedded(ctx, release)
	}
	var server *Server
	if err == nil {
		server, err = h.startPostgres(ctx, cluster{
			Binaries: found, password: rand.Text(), settings: settings(cfg.Settings), fill: initdb,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("devstack: start a PostgreSQL server: %w", err)
	}
	return server, nil
}

func settings(of map[string]string) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, name+"="+of[name])
	}
	return lines
}

// DSN returns a superuser's URL for pgx and libpq. A restarted server keeps its DSN.
func (s *Server) DSN() string { return s.dsn }

// Address returns host:port.
func (s *Server) Address() string { return s.address }

// Source returns the version and where the binaries came from.
func (s *Server) Source() string { return s.cluster.Source }

// LogTail returns the end of the server's log.
func (s *Server) LogTail() string { return s.watchdog.Room.Tail() }

// Crash kills every process of the server at the same moment, like a failure of its machine, except that writes that were not flushed
// survive. Start recovers it.
func (s *Server) Crash(ctx context.Context) error {
	if err := s.watchdog.Crash(ctx); err != nil {
		return fmt.Errorf("devstack: crash PostgreSQL at %s: %w", s.address, err)
	}
	return nil
}

// Start runs the server again after a crash, at the same address and with the data that the crash left. It returns once the server
// answers.
func (s *Server) Start(ctx context.Context) error {
	stopped, err := s.watchdog.Again(ctx, s.answers)
	if stopped {
		s.stopOnce.Do(func() {})
	}
	if err != nil {
		return fmt.Errorf("devstack: start PostgreSQL at %s again: %w", s.address, err)
	}
	return nil
}

// Stop ends the server, if it still runs, and waits until everything of it is gone. Further calls return the same result.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() { s.stopErr = s.watchdog.Stop() })
	return s.stopErr
}

// Standby runs a streaming replica of the server and returns once it answers queries. Replication is asynchronous unless the server's
// settings name the standby ("walreceiver"). The standby must be stopped separately.
func (s *Server) Standby(ctx context.Context, cfg ServerConfig) (*Server, error) {
	c := s.cluster
	c.settings = append(slices.Clone(c.settings), settings(cfg.Settings)...)
	c.fill = s.baseBackup
	standby, err := hooks{freePort: machine.QuietPort}.startPostgres(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("devstack: start a standby of PostgreSQL at %s: %w", s.address, err)
	}
	return standby, nil
}

// baseBackup fills the data folder with a copy of this server's, configured as a standby of it.
func (s *Server) baseBackup(_ cluster, r *watchdog.Room) ([]string, error) {
	tool, err := s.Tool("pg_basebackup")
	if errors.Is(err, ErrAbsent) {
		return []string{"true"}, s.copyTo(r)
	}
	if err != nil {
		return nil, err
	}
	// As an argument, the password would be in every process listing.
	if err := r.Write("password", "*:*:*:*:"+s.cluster.password+"\n"); err != nil {
		return nil, err
	}
	origin, err := url.Parse(s.dsn)
	if err != nil {
		return nil, err
	}
	origin.User = url.User("postgres")
	return []string{
		"env", "PGPASSFILE=" + r.Path("password"), tool, "--dbname=" + origin.String(), "--pgdata=" + r.Path("data"),
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync",
	}, nil
}

// Promote promotes a standby and returns once it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("devstack: promote PostgreSQL at %s: %w", s.address, err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statement's error matters
	var promoted bool
	err = conn.QueryRow(ctx, "select pg_promote(true, 30)").Scan(&promoted)
	if err == nil && !promoted {
		err = errors.New("it did not become writable within 30 seconds")
	}
	if err != nil {
		return fmt.Errorf("devstack: promote PostgreSQL at %s: %w", s.address, err)
	}
	return nil
}

// Tool returns the path of one of PostgreSQL's programs, such as pg_dump. It comes from the server's own binaries if they have it; those
// of embedded-postgres do not. Otherwise it comes from an installed version that is not older than the server, because an older program
// refuses the server. The error says that neither has it.
func (s *Server) Tool(name string) (string, error) {
	major, _, _ := strings.Cut(s.cluster.Version, ".")
	folders := append([]string{s.cluster.Bin}, pgbinaries.Folders()...)
	for _, bin := range folders {
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); err != nil || !s.cluster.As.Reaches(path) {
			continue
		}
		version, err := pgbinaries.Version(context.Background(), bin, s.cluster.As) // it only prints a line
		if err == nil && machine.CompareVersions(version, major) >= 0 {
			return path, nil
		}
	}
	return "", machine.Absent("no %s of PostgreSQL %s or newer in %s", name, major, strings.Join(folders, ", "))
}

func (s *Server) answers(ctx context.Context) error { return askPostgres(ctx, s.dsn) }
