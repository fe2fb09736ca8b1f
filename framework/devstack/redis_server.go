package devstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// RedisConfig configures a RedisServer. Its zero value is ready for use.
type RedisConfig struct {
	// Settings are lines of redis.conf by name. By default, every write is in the append-only file before it is answered, so that a crash
	// loses nothing. With "appendonly": "no" a crash loses everything.
	Settings map[string]string
}

// RedisServer is a Redis server for one caller, which may be crashed and started again. Like a Stack, it leaves nothing behind. Its
// methods must not be called concurrently.
type RedisServer struct {
	watchdog *watchdog.Watchdog
	address  string
	dir      string
	source   string

	stopOnce sync.Once
	stopErr  error
}

// StartRedis runs a new server and returns once it answers. The caller must stop it. The error wraps ErrAbsent if redis-server is not
// installed.
func StartRedis(ctx context.Context, cfg RedisConfig) (*RedisServer, error) {
	server, err := hooks{freePort: machine.QuietPort}.startRedis(ctx, cfg.Settings)
	if err != nil {
		return nil, fmt.Errorf("devstack: start a Redis server: %w", err)
	}
	return server, nil
}

func (h hooks) startRedis(ctx context.Context, settings map[string]string) (*RedisServer, error) {
	program, source, err := redisProgram(ctx)
	if err != nil {
		return nil, err
	}
	return retryPort(h, func(port int) (*RedisServer, error) {
		r, err := watchdog.NewRoom(string(Redis), nil)
		if err != nil {
			return nil, err
		}
		dir, err := filepath.EvalSymlinks(r.Dir) // the server reports the real path
		if err == nil {
			err = r.Write("settings", redisSettings(port, dir, settings))
		}
		if err != nil {
			return nil, errors.Join(err, r.Discard())
		}
		w, err := watchdog.Watch(r, watchdog.Step{Signal: "TERM", Argv: []string{program, r.Path("settings")}})
		if err != nil {
			return nil, err
		}
		server := &RedisServer{watchdog: w, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, source: source}
		if err := w.Await(ctx, server.answers); err != nil {
			return nil, err
		}
		return server, nil
	})
}

// redisSettings returns a redis.conf. If a setting appears twice, the last one counts.
func redisSettings(port int, dir string, settings map[string]string) string {
	lines := []string{
		"port " + strconv.Itoa(port), "bind 127.0.0.1", "protected-mode yes", "daemonize no", "dir " + strconv.Quote(dir),
		`save ""`, "appendonly yes", "appendfsync always",
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		lines = append(lines, name+" "+settings[name])
	}
	return strings.Join(lines, "\n") + "\n"
}

// Address returns host:port. A restarted server keeps its address.
func (s *RedisServer) Address() string { return s.address }

// Source returns the version and where the program came from.
func (s *RedisServer) Source() string { return s.source }

// LogTail returns the end of the server's log.
func (s *RedisServer) LogTail() string { return s.watchdog.Room.Tail() }

// Crash kills the server, like a failure of its machine, except that writes that were not flushed survive.
func (s *RedisServer) Crash(ctx context.Context) error {
	if err := s.watchdog.Crash(ctx); err != nil {
		return fmt.Errorf("devstack: crash Redis at %s: %w", s.address, err)
	}
	return nil
}

// Start runs the server again after a crash, at the same address and with the data that the crash left. It returns once the server
// answers.
func (s *RedisServer) Start(ctx context.Context) error {
	stopped, err := s.watchdog.Again(ctx, s.answers)
	if stopped {
		s.stopOnce.Do(func() {})
	}
	if err != nil {
		return fmt.Errorf("devstack: start Redis at %s again: %w", s.address, err)
	}
	return nil
}

// Stop ends the server, if it still runs, and waits until everything of it is gone. Further calls return the same result.
func (s *RedisServer) Stop() error {
	s.stopOnce.Do(func() { s.stopErr = s.watchdog.Stop() })
	return s.stopErr
}

func (s *RedisServer) answers(ctx context.Context) error { return askRedis(ctx, s.address, s.dir) }
