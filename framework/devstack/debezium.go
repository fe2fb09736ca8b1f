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
	// Worker holds the worker's properties by name, without the address of its REST interface. Required.
	Worker map[string]string

	// Connector is the connector's configuration by name. Required.
	Connector map[string]string
}

// Debezium is a distributed Kafka Connect cluster with one worker, which runs Debezium's connector for PostgreSQL. It may be crashed and
// started again. Like a Stack, it leaves nothing behind. Its methods must not be called concurrently.
type Debezium struct {
	watchdog  *watchdog.Watchdog
	url       string   // the connector's
	connector []byte   // its configuration, as JSON
	worker    []string // the lines of its properties file
	starts    int
	source    string

	stopOnce sync.Once
	stopErr  error
}

// StartDebezium runs Kafka Connect and returns once the connector's task runs. The caller must stop it. The error wraps ErrAbsent if
// scripts/debezium has not been run.
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

// prepare writes the properties for the next start. Each start advertises another port, which identifies it: Kafka stores the status of a
// task, and after a worker is killed it says RUNNING until a later worker runs the task. Nothing connects to that port, because a single
// worker forwards no requests.
func (d *Debezium) prepare(r *watchdog.Room) error {
	d.starts++
	lines := slices.Concat(d.worker, []string{"rest.advertised.host.name=127.0.0.1", fmt.Sprint("rest.advertised.port=", d.starts)})
	return r.Write("worker.properties", strings.Join(lines, "\n")+"\n")
}

// workerID is the worker's name in the status of a task, for the latest start.
func (d *Debezium) workerID() string { return fmt.Sprint("127.0.0.1:", d.starts) }

const debeziumJar = "debezium-connector-postgres-*.jar"

// findDebezium returns the folder that scripts/debezium filled, and its version. Of several folders it returns the newest.
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

// Source returns the version.
func (d *Debezium) Source() string { return d.source }

// LogTail returns the end of the log.
func (d *Debezium) LogTail() string { return d.watchdog.Room.Tail() }

// Crash kills the process (SIGKILL). Its offsets stay in Kafka.
func (d *Debezium) Crash(ctx context.Context) error {
	if err := d.watchdog.Crash(ctx); err != nil {
		return fmt.Errorf("devstack: crash Debezium at %s: %w", d.url, err)
	}
	return nil
}

// Start runs the process again after a crash, at the same address. It returns once the connector's task runs.
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

// Stop ends the process, if it still runs, and waits until everything of it is gone. Further calls return the same result.
func (d *Debezium) Stop() error {
	d.stopOnce.Do(func() { d.stopErr = d.watchdog.Stop() })
	return d.stopErr
}

// answers returns nil once Kafka Connect can read its stored configuration.
func (d *Debezium) answers(ctx context.Context) error {
	_, err := d.ask(ctx, http.MethodGet, "/config", nil, nil)
	return err
}

// publishes returns nil once the worker of this start runs the connector's task. It creates the connector if it does not exist.
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

// ask leaves answer unchanged if the connector does not exist.
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
