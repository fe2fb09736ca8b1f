package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/pgbinaries"
)

// ErrAbsent is wrapped by the error for a source or a program that this machine does not have. Try another one, or install it.
var ErrAbsent = machine.ErrAbsent

// hooks are switches for tests. All other callers use the zero value.
type hooks struct {
	freePort      func() (int, error)
	skipInstalled bool   // no installed PostgreSQL, no installed emulator, no Apache Kafka, no Redis
	postgresBin   string // binaries to use instead of the installed ones
}

func (h hooks) port() (int, error) {
	if h.freePort != nil {
		return h.freePort()
	}
	return machine.FreePort()
}

// start starts one service from the first source that is available.
func (h hooks) start(ctx context.Context, service Service, mustBeReal bool) (*instance, error) {
	var sources []func(context.Context) (*instance, error)
	var fake func() (*instance, error)
	switch service {
	case Postgres:
		sources = append(sources, postgresFromEnvironment, h.postgresFrom(h.installedBinaries), h.postgresFrom(pgbinaries.Embedded))
	case PubSub:
		sources = append(sources, pubsubFromEnvironment, h.installedEmulator)
		fake = fakePubSub
	case Kafka, Kafka3:
		size := 1
		if service == Kafka3 {
			size = 3
		}
		sources = append(sources, kafkaFromEnvironment(service, size), h.apacheKafka(service, size))
		fake = fakeKafka(service, size)
	case Redis:
		sources = append(sources, redisFromEnvironment, h.installedRedis)
		fake = fakeRedis
	}
	var reasons []error
	for _, source := range sources {
		found, err := source(ctx)
		if err == nil && mustBeReal && !found.info.Real {
			return nil, errors.Join(fmt.Errorf("%s asks for a real one, and this is %s: name another, or none", requireVariable, found.info.Source), found.end())
		}
		if err == nil {
			return found, nil
		}
		// A cancelled "postgres --version" looks like a missing PostgreSQL, and would start a download.
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		if !errors.Is(err, ErrAbsent) {
			return nil, err
		}
		reasons = append(reasons, err)
	}
	if fake == nil {
		return nil, errors.Join(reasons...)
	}
	if mustBeReal {
		return nil, fmt.Errorf("%s asks for a real one, and only a fake is to be had: %w\nThe run needs %s, or name a running one by %s",
			requireVariable, errors.Join(reasons...), Need(string(service)), variable[service])
	}
	return fake()
}

// named returns the service's address from the environment. The error wraps ErrAbsent if the variable is not set.
func named(service Service) (string, error) {
	value := strings.TrimSpace(os.Getenv(variable[service]))
	if value == "" {
		return "", machine.Absent("%s is not set", variable[service])
	}
	return value, nil
}

// namedInfo describes a service that the environment names.
func namedInfo(service Service, address string, fake bool) Info {
	what := calls[service].real
	if fake {
		what = calls[service].fake
	}
	return Info{Service: service, Source: what + ", named by " + variable[service], Address: address, Real: !fake}
}

// calls are the names of services that others run, for Info.Source. Their version is not known here.
var calls = map[Service]struct{ real, fake string }{
	Postgres: {real: "PostgreSQL"},
	PubSub:   {"a Pub/Sub emulator", "pstest"},
	Kafka:    {"Kafka", "kfake"},
	Kafka3:   {"Kafka", "kfake"},
	Redis:    {"Redis", "miniredis"},
}

// retryPort calls try with free ports, up to five times, as long as it fails because another process took the port.
func retryPort[T any](h hooks, try func(port int) (T, error)) (started T, err error) {
	for range 5 {
		var port int
		if port, err = h.port(); err != nil {
			return started, fmt.Errorf("find a free port: %w", err)
		}
		if started, err = try(port); !errors.Is(err, machine.ErrPortTaken) {
			return started, err
		}
	}
	return started, err
}
