package devstack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stack is a set of running services. The zero Stack is empty; Add starts services. All methods may be called concurrently.
type Stack struct {
	// Ready is called when a service of this stack first answers, from several goroutines. Set it before the first Add. Default: no call.
	Ready func(Info)

	hooks hooks

	mu      sync.Mutex
	stopped bool
	slots   map[Service]*slot

	stopOnce sync.Once
	stopErr  error
}

// slot is one service that is starting or running.
type slot struct {
	cancel   context.CancelFunc // aborts the start
	done     chan struct{}      // closed when the start has ended; the fields below are set by then
	instance *instance
	err      error
}

// instance is one running service.
type instance struct {
	info Info
	// value is the value of the service's environment variable for a client.
	value string
	// stop ends the service and waits until everything of it is gone. It is nil for a service that this stack did not start.
	stop func() error
}

func (i *instance) end() error {
	if i.stop == nil {
		return nil
	}
	return i.stop()
}

// Add starts the named services that the stack lacks and returns once all of them answer. If another call is starting a service, Add
// waits for it. If some fail, the others stay in the stack, and a failed one may be added again. After Stop it returns an error.
func (s *Stack) Add(ctx context.Context, services ...Service) error {
	if err := checkServices(services); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	required, err := requiredReal()
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	errs := make([]error, len(services))
	var group sync.WaitGroup
	for i, service := range services {
		group.Go(func() {
			if err := s.add(ctx, service, required); err != nil {
				errs[i] = fmt.Errorf("devstack: start %s: %w", service, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// rivals are services that use the same environment variable.
var rivals = map[Service]Service{Kafka: Kafka3, Kafka3: Kafka}

func (s *Stack) add(ctx context.Context, service Service, required []Service) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return errors.New("the stack is stopped")
	}
	if rival, ok := rivals[service]; ok && s.slots[rival] != nil {
		s.mu.Unlock()
		return fmt.Errorf("the stack has %s, and both are %s", rival, variable[service])
	}
	if other := s.slots[service]; other != nil {
		s.mu.Unlock()
		select {
		case <-other.done:
			return other.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := &slot{cancel: cancel, done: make(chan struct{})}
	if s.slots == nil {
		s.slots = make(map[Service]*slot)
	}
	s.slots[service] = own
	s.mu.Unlock()

	began := time.Now()
	own.instance, own.err = s.hooks.start(ctx, service, slices.Contains(required, service))
	if own.err == nil {
		own.instance.info.Took = time.Since(began)
		if s.Ready != nil {
			s.Ready(own.instance.info)
		}
	} else {
		s.mu.Lock()
		delete(s.slots, service)
		s.mu.Unlock()
	}
	close(own.done)
	return own.err
}

// Stop stops every service that the stack has started and waits until its processes, folders and ports are gone. Services that the
// environment named keep running. A second call waits for the first and returns the same result.
func (s *Stack) Stop() error {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		s.stopped = true
		var slots []*slot
		for _, one := range s.slots {
			one.cancel()
			slots = append(slots, one)
		}
		s.mu.Unlock()

		errs := make([]error, len(slots))
		var group sync.WaitGroup
		for i, one := range slots {
			group.Go(func() {
				<-one.done
				if one.err == nil {
					if err := one.instance.end(); err != nil {
						errs[i] = fmt.Errorf("devstack: stop %s: %w", one.instance.info.Service, err)
					}
				}
			})
		}
		group.Wait()
		s.stopErr = errors.Join(errs...)
	})
	return s.stopErr
}

// PostgresDSN returns a superuser's URL for pgx and libpq, or "" if the stack has no PostgreSQL.
func (s *Stack) PostgresDSN() string { return s.value(Postgres) }

// PubSubHost returns host:port of the Pub/Sub emulator, without TLS, or "" if the stack has none.
func (s *Stack) PubSubHost() string { return s.value(PubSub) }

// KafkaBrokers returns host:port of each seed broker, without TLS, or nil if the stack has no Kafka.
func (s *Stack) KafkaBrokers() []string {
	if value := s.value(Kafka) + s.value(Kafka3); value != "" { // it has at most one of them
		return strings.Split(value, ",")
	}
	return nil
}

// RedisAddr returns host:port, without TLS or a password, or "" if the stack has no Redis.
func (s *Stack) RedisAddr() string { return s.value(Redis) }

// Services returns the source of each service that answers.
func (s *Stack) Services() []Info {
	var infos []Info
	for _, service := range known {
		if running := s.running(service); running != nil {
			infos = append(infos, running.info)
		}
	}
	return infos
}

// Env returns KEY=VALUE lines that name the stack's services to a child process, whose own stack then uses them.
func (s *Stack) Env() []string {
	var env []string
	for _, service := range known {
		if value := s.value(service); value != "" {
			env = append(env, variable[service]+"="+value)
		}
	}
	return env
}

func (s *Stack) value(service Service) string {
	if running := s.running(service); running != nil {
		return running.value
	}
	return ""
}

// running returns the service if its start has succeeded.
func (s *Stack) running(service Service) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.slots[service]
	if one == nil {
		return nil
	}
	select {
	case <-one.done:
		return one.instance
	default:
		return nil
	}
}
