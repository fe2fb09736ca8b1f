package devstack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// DebeziumConfig configures a Debezium.
type DebeziumConfig struct {
	// Worker are the lines of the worker's properties, by name, without the address of its own interface. Required.
	Worker map[string]string

	// Connector is the configuration of the connector, by name. Required.
	Connector map[string]string
}

// Debezium is a distributed Kafka Connect with one worker, which runs Debezium's connector for PostgreSQL, and which may be
// crashed and started again. It leaves no more behind than a Stack does. One goroutine at a time may call its methods.
type Debezium struct {
	watchdog  *watchdog.Watchdog
	url       string   // of the connector
	connector []byte   // its configuration, as JSON
	worker    []string // the lines of its properties
	starts    int
	source    string

	stopOnce sync.Once
	stopErr  error
}

// StartDebezium runs Kafka Connect and returns once the connector's task runs. The caller stops it. The error wraps ErrAbsent
// where scripts/debezium has not been run.
func StartDebezium(ctx context.Context, cfg DebeziumConfig) (*Debezium, error) {
	debezium, err := hooks{freePort: machine.QuietPort}.startDebezium(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("devstack: start Debezium: %w", err)
	}
	return debezium, nil
}

func (h hooks) startDebezium(ctx context.Context, cfg DebeziumConfig) (*Debezium, error) {
	home, version, err := findDebezium()
	if err != nil {
		return nil, err
	}
	java, err := machine.FindJava(ctx, 17)
	if err != nil {
		return nil, machine.JavaMissing(home, err)
	}
	connector, err := json.Marshal(cfg.Connector)
	if err != nil {
		return nil, err
	}
	return retryPort(h, func(port int) (*Debezium, error) {
		r, err := watchdog.NewRoom("debezium", nil)
		if err != nil {
			return nil, err
		}
		listener := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		d := &Debezium{
			url: listener + "/connectors/outbox", connector: connector, worker: append(settings(cfg.Worker), "listeners="+listener), source: "Debezium " + version,
		}
		err = errors.Join(d.prepare(r), r.Write("log4j2.properties", kafkaLogging))
		if err != nil {
			return nil, errors.Join(err, r.Discard())
		}
		d.watchdog, err = watchdog.Watch(r, watchdog.Step{Signal: "TERM", Argv: watchdog.JavaCommand(java, r, "-cp", filepath.Join(home, "*"),
			"-Dlog4j2.configurationFile="+r.Path("log4j2.properties"), "org.apache.kafka.connect.cli.ConnectDistributed", r.Path("worker.properties"))})
		if err != nil {
			return nil, err
		}
		if err := d.watchdog.Await(ctx, d.answers); err != nil {
			return nil, err
		}
		if err := d.watchdog.Await(ctx, d.publishes); err != nil {
			return nil, err
		}
		return d, nil
	})
}

// prepare writes the properties for the next start. By its port that start is told from the ones before: the status of a task
// is in Kafka, and one whose worker was killed says RUNNING until a later worker runs the task. Nobody connects to that port,
// because the only worker has nobody to forward a request to.
func (d *Debezium) prepare(r *watchdog.Room) error {
	d.starts++
	lines := slices.Concat(d.worker, []string{"rest.advertised.host.name=127.0.0.1", fmt.Sprint("rest.advertised.port=", d.starts)})
	return r.Write("worker.properties", strings.Join(lines, "\n")+"\n")
}

// workerID is what the status of a task has of the worker since the latest start.
func (d *Debezium) workerID() string { return fmt.Sprint("127.0.0.1:", d.starts) }

const debeziumJar = "debezium-connector-postgres-*.jar"

// findDebezium returns the folder that scripts/debezium has filled, the newest if there are several, and its version.
func findDebezium() (home, version string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", machine.Absent("no folder for Debezium: %w", err)
	}
	pattern := filepath.Join(cache, "millrace", "debezium-*", debeziumJar)
	jars, _ := filepath.Glob(pattern) // a bad pattern finds nothing
	for _, jar := range jars {
		found := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jar), "debezium-connector-postgres-"), ".jar")
		if machine.CompareVersions(found, version) > 0 {
			home, version = filepath.Dir(jar), found
		}
	}
	if home == "" {
		return "", "", machine.Absent("no %s", pattern)
	}
	return home, version, nil
}

// Source tells the version.
func (d *Debezium) Source() string { return d.source }

// LogTail is the end of the log.
func (d *Debezium) LogTail() string { return d.watchdog.Room.Tail() }

// Crash kills the process (SIGKILL). Its offsets are in Kafka.
func (d *Debezium) Crash(ctx context.Context) error {
	if err := d.watchdog.Crash(ctx); err != nil {
		return fmt.Errorf("devstack: crash Debezium at %s: %w", d.url, err)
	}
	return nil
}

// Start runs the process after a crash, at the same address, and returns once it runs the
// connector's task.
func (d *Debezium) Start(ctx context.Context) error {
	if err := d.prepare(d.watchdog.Room); err != nil {
		return fmt.Errorf("devstack: start Debezium at %s again: %w", d.url, err)
	}
	stopped, err := d.watchdog.Again(ctx, d.answers)
	if err == nil {
		err = d.watchdog.Await(ctx, d.publishes)
		stopped = err != nil
	}
	if stopped {
		d.stopOnce.Do(func() {})
	}
	if err != nil {
		return fmt.Errorf("devstack: start Debezium at %s again: %w", d.url, err)
	}
	return nil
}

// Stop ends the process, crashed or not, and waits until nothing of it is left. Further calls return the same.
func (d *Debezium) Stop() error {
	d.stopOnce.Do(func() { d.stopErr = d.watchdog.Stop() })
	return d.stopErr
}

// answers reports whether Kafka Connect knows what connectors it has.
func (d *Debezium) answers(ctx context.Context) error {
	_, err := d.ask(ctx, http.MethodGet, "/config", nil, nil)
	return err
}

// publishes asks whether this start's worker runs the connector's task, and has the connector made where there is none.
func (d *Debezium) publishes(ctx context.Context) error {
	var status struct {
		Tasks []struct {
			State, Trace string
			Worker       string `json:"worker_id"`
		}
	}
	code, err := d.ask(ctx, http.MethodGet, "/status", nil, &status)
	if err == nil && code == http.StatusNotFound {
		code, err = d.ask(ctx, http.MethodPut, "/config", d.connector, nil)
	}
	if err != nil {
		return err
	}
	if len(status.Tasks) != 1 || status.Tasks[0].State != "RUNNING" || status.Tasks[0].Worker != d.workerID() {
		return fmt.Errorf("status %d: worker %s does not run the connector's task: %+v", code, d.workerID(), status.Tasks)
	}
	return nil
}

// ask leaves the answer as it is where there is no connector.
func (d *Debezium) ask(ctx context.Context, method, path string, body []byte, answer any) (code int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, d.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	switch {
	case err != nil || response.StatusCode == http.StatusNotFound:
	case response.StatusCode >= http.StatusBadRequest:
		err = fmt.Errorf("%s: %s", response.Status, content)
	case answer != nil:
		err = json.Unmarshal(content, answer)
	}
	return response.StatusCode, err
}
