// Command queuebench is Millrace's adapter for github.com/hardbyte/postgresql-job-queue-benchmarking: one process that inserts jobs
// through the outbox, forwards them, and handles them under a claim. Its environment and its output are the harness's contract; see
// README.md.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
)

const (
	serviceName   = "queuebench"
	handlerName   = "work"
	insertedTable = "queuebench_inserted"
	// spare are the connections beside those of the workers: 5 for the relay, 2 for background work, the producer and the observer.
	spare = 9
	// drainFor and stopFor are together within the 5 seconds that the harness gives.
	drainFor = 2 * time.Second
	stopFor  = 2 * time.Second
)

//go:embed adapter.json kafka/adapter.json
var manifests embed.FS

type job struct {
	Seq      int64
	Inserted int64 // before its transaction began, in nanoseconds of Unix time
	Padding  string
}

// adapter is one process.
type adapter struct {
	settings
	manifest manifest
	service  *framework.Service
	jobs     *framework.TopicOf[job]
	log      *slog.Logger
	found    int64 // in the outbox when the process started
	seq      int64 // of the producer

	waits                        window
	enqueued, started, completed atomic.Int64
	depth, target                atomic.Int64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "queuebench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	s, err := readSettings(os.Getenv)
	if err != nil {
		return err
	}
	a := &adapter{settings: s}
	database, err := a.open(ctx)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(out)
	if err := lines.Encode(a.descriptor(database)); err != nil {
		return errors.Join(err, a.service.Close())
	}
	return a.run(ctx, lines)
}

// open makes the service, with Millrace's defaults for all that the harness does not say; MILLRACE_* variables change them.
func (a *adapter) open(ctx context.Context) (database string, err error) {
	broker, file := memory.Driver.Name, "adapter.json"
	if a.brokers != "" {
		broker, file = kafka.Driver.Name, "kafka/adapter.json"
	}
	text, err := manifests.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &a.manifest)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	environ := slices.Concat([]string{
		"MILLRACE_HTTP_ADDRESS=127.0.0.1:0", "MILLRACE_LOG_LEVEL=warn", "MILLRACE_POSTGRES_MAX_CONNECTIONS=" + strconv.Itoa(a.workers+spare),
	}, os.Environ(), []string{ // the last one counts
		"MILLRACE_SERVICE=" + serviceName, "MILLRACE_BROKER=" + broker, "MILLRACE_POSTGRES_DSN=" + a.database, "MILLRACE_POSTGRES_MIGRATE=true",
		fmt.Sprintf("MILLRACE_HANDLERS={%s: {concurrency: %d}}", handlerName, a.workers), "MILLRACE_SHUTDOWN_TIMEOUT=" + stopFor.String(),
	})
	config, err := framework.LoadEnv("", environ, memory.Driver, kafka.Driver)
	if err != nil {
		return "", err
	}
	if a.service, err = framework.New(ctx, config); err != nil {
		return "", err
	}
	a.log = a.service.Log()
	// A topic of the database's own: a broker outlives the harness's databases.
	var of string
	err = a.service.Pool().QueryRow(ctx, `select current_database(), (select system_identifier from pg_control_system()) || '.' || oid
		from pg_database where datname = current_database()`).Scan(&database, &of)
	if err == nil {
		_, err = a.service.Pool().Exec(ctx, `create table if not exists `+insertedTable+` (jobs int not null)`)
	}
	if err == nil {
		a.found, err = a.inOutbox(ctx)
	}
	if err == nil {
		a.jobs = framework.Topic[job](serviceName+"."+of, framework.EventType("Job", 1))
		err = framework.Handle(a.service, handlerName, a.jobs, a.handle)
	}
	if err != nil {
		return "", errors.Join(err, a.service.Close())
	}
	return database, nil
}

// handle is a worker's job.
func (a *adapter) handle(ctx context.Context, j job) error {
	now := time.Now()
	a.started.Add(1)
	a.waits.note(now, now.Sub(time.Unix(0, j.Inserted)))
	if !wait.For(ctx, a.work) {
		return ctx.Err()
	}
	a.completed.Add(1)
	return nil
}

// run produces until ctx ends; then what was inserted is handled, as far as there is time, before the service stops.
func (a *adapter) run(ctx context.Context, lines *json.Encoder) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error { return a.service.Run(serving) })
	group.Go(func() error { return a.measureDepth(serving) })
	group.Go(func() error { return a.report(serving, lines) })
	group.Go(func() error {
		defer stop()
		select {
		case <-a.service.Running():
		case <-serving.Done():
			return nil
		}
		producing, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(serving, cancel)() // the service has failed
		a.produce(producing)
		a.drain(serving)
		return nil
	})
	return group.Wait()
}

func (a *adapter) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	for wait.For(ctx, 50*time.Millisecond) {
		if n, err := a.waiting(ctx); err == nil && n <= 0 {
			return
		}
	}
}

// revision is that of Millrace's source, if the program was built in its repository.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return "unknown"
}
