package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

func redisFromEnvironment(ctx context.Context) (*instance, error) {
	address, err := named(Redis)
	if err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("%s is %q: want host:port", variable[Redis], address)
	}
	fake := false
	err = askOnce(ctx, func(ctx context.Context) (err error) {
		if err = askRedis(ctx, address, ""); err != nil {
			return err
		}
		fake, err = isMiniredis(ctx, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask the server that %s names: %w", variable[Redis], err)
	}
	return &instance{info: namedInfo(Redis, address, fake), value: address}, nil
}

// installedRedis runs this machine's redis-server without persistence.
func (h hooks) installedRedis(ctx context.Context) (*instance, error) {
	if h.skipInstalled {
		return nil, machine.Absent("the installed Redis is not wanted")
	}
	server, err := h.startRedis(ctx, map[string]string{"appendonly": "no"})
	if err != nil {
		return nil, err
	}
	return &instance{
		info:  Info{Service: Redis, Source: server.source, Address: server.address, Real: true},
		value: server.address,
		stop:  server.Stop,
	}, nil
}

// redisProgram finds the server and returns its version.
func redisProgram(ctx context.Context) (path, source string, err error) {
	path, err = exec.LookPath("redis-server")
	if err != nil {
		return "", "", machine.Absent("no redis-server on the PATH %s", strings.TrimSpace(os.Getenv("PATH")))
	}
	output, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("%s --version: %w: %s", path, err, output)
	}
	version := "of an unknown version"
	if found := redisVersion.FindSubmatch(output); found != nil {
		version = string(found[1])
	}
	return path, fmt.Sprintf("Redis %s from %s", version, path), nil
}

var redisVersion = regexp.MustCompile(`\bv=([0-9.]+)`)

// fakeRedis runs miniredis. Child processes can use it too, over its port.
func fakeRedis() (*instance, error) {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	ended, expired := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(expired)
		expire(server, ended)
	}()
	return &instance{
		info:  Info{Service: Redis, Source: "miniredis, in process", Address: server.Addr()},
		value: server.Addr(),
		stop: func() error {
			close(ended)
			<-expired
			server.Close()
			return nil
		},
	}, nil
}

// longestStep bounds how much time passes for the fake's keys in one step. This process may have been stopped for longer, for example on
// a suspended or overloaded machine. Then a key set just before must not lose all that time: its lock would be free while its owner still
// holds it.
const longestStep = 100 * time.Millisecond

// expire lets time pass for the keys of miniredis, which do not expire by themselves: the lock of a killed process would be held forever.
func expire(server *miniredis.Miniredis, ended <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-tick.C:
			now := time.Now()
			pass(server, now.Sub(last))
			last = now
		}
	}
}

func pass(server *miniredis.Miniredis, elapsed time.Duration) {
	server.FastForward(min(elapsed, longestStep))
}

// askRedis returns nil if the server answers. If dir is not "", the server must also be the one that runs in that folder.
func askRedis(ctx context.Context, address, dir string) error {
	client := askingRedis(address)
	defer client.Close() //nolint:errcheck // the answer's error matters
	if err := client.Ping(ctx).Err(); err != nil || dir == "" {
		return err
	}
	settings, err := client.ConfigGet(ctx, "dir").Result()
	if err == nil && settings["dir"] != dir {
		err = errors.New("another server answers at its port")
	}
	return err
}

// isMiniredis reports whether the server is the fake. A real server answers INFO, or refuses it for lack of permission.
func isMiniredis(ctx context.Context, address string) (bool, error) {
	client := askingRedis(address)
	defer client.Close() //nolint:errcheck // the answer's error matters
	err := client.Info(ctx, "server").Err()
	if answer := redis.Error(nil); errors.As(err, &answer) {
		return strings.Contains(answer.Error(), "section (server) is not supported"), nil
	}
	return false, err
}

func askingRedis(address string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}
