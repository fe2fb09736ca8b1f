package devstack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"

	"github.com/millrace-go/millrace/framework/devstack/internal/fakekafka"
	"github.com/millrace-go/millrace/framework/devstack/internal/kafkaview"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// kafkaFromEnvironment uses the cluster that the environment names. It must have at least size brokers.
func kafkaFromEnvironment(service Service, size int) func(context.Context) (*instance, error) {
	return func(ctx context.Context) (*instance, error) {
		value, err := named(service)
		if err != nil {
			return nil, err
		}
		brokers := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
		if len(brokers) == 0 {
			return nil, fmt.Errorf("%s is %q: want host:port, several with commas between", variable[service], value)
		}
		value = strings.Join(brokers, ",")
		fake := false
		err = askOnce(ctx, func(ctx context.Context) error {
			err := kafkaview.Ask(ctx, brokers, kfakeCluster, size)
			if fake = err == nil; errors.Is(err, kafkaview.ErrOtherCluster) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask the brokers that %s names: %w", variable[service], err)
		}
		return &instance{info: namedInfo(service, value, fake), value: value}, nil
	}
}

// apacheKafka runs the given number of brokers from the folder that scripts/kafka fills.
func (h hooks) apacheKafka(service Service, brokers int) func(context.Context) (*instance, error) {
	return func(ctx context.Context) (*instance, error) {
		if h.skipInstalled {
			return nil, machine.Absent("Apache Kafka is not wanted")
		}
		cluster, err := h.startKafka(ctx, KafkaConfig{Brokers: brokers})
		if err != nil {
			return nil, err
		}
		value := strings.Join(cluster.Brokers(), ",")
		return &instance{
			info:  Info{Service: service, Source: cluster.source, Address: value, Real: true},
			value: value,
			stop:  cluster.Stop,
		}, nil
	}
}

// prepare writes the settings of the broker at this place in the plan, formats its storage, and returns the commands that run it. SIGKILL
// ends the broker: a clean shutdown would save data that is deleted with the room, and would wait long for the other brokers of its
// cluster.
func (home kafkaHome) prepare(r *watchdog.Room, java, cluster string, plan kafkaPlan, place int) ([]watchdog.Step, error) {
	logging := r.Path("log4j2.properties")
	settings := r.Path("server.properties")
	err := errors.Join(
		r.Write("log4j2.properties", kafkaLogging),
		r.Write("server.properties", kafkaSettings(plan, place, r.Path("data"))),
	)
	if err != nil {
		return nil, err
	}
	run := func(args ...string) watchdog.Step {
		common := []string{"-Xmx384m", "-Dlog4j2.configurationFile=" + logging, "-cp", home.classPath()}
		return watchdog.Step{Signal: "KILL", Argv: watchdog.JavaCommand(java, r, append(common, args...)...)}
	}
	formatted, err := home.format(r, cluster, place+1)
	if err != nil {
		return nil, err
	}
	steps := []watchdog.Step{run("kafka.Kafka", settings)}
	if !formatted {
		steps = append([]watchdog.Step{run("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", settings)}, steps...)
	}
	return steps, nil
}

// format does what StorageTool does, with the checkpoint that scripts/kafka saved. That saves the start of a JVM, about a second and a
// half. It returns false if the folder has no checkpoint.
func (home kafkaHome) format(r *watchdog.Room, cluster string, node int) (bool, error) {
	checkpoint, err := os.ReadFile(home.path("bootstrap.checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := os.Mkdir(r.Path("data"), 0o700); err != nil {
		return false, err
	}
	return true, errors.Join(
		r.Write("data/bootstrap.checkpoint", string(checkpoint)),
		r.Write("data/meta.properties", fmt.Sprintf("version=1\nnode.id=%d\ncluster.id=%s\ndirectory.id=%s\n", node, cluster, kafkaID())),
	)
}

// kafkaID returns a random ID in the notation that Kafka's tools use for clusters and folders.
func kafkaID() string {
	for {
		random := uuid.New()
		// Kafka avoids a leading dash too, because its tools would read it as an option.
		if id := base64.RawURLEncoding.EncodeToString(random[:]); id[0] != '-' {
			return id
		}
	}
}

// kfakeCluster is the cluster ID that kfake uses. Kafka's are random.
const kfakeCluster = "kfake"

// fakeKafka runs franz-go's fake brokers. Child processes can use them too, over their ports.
func fakeKafka(service Service, brokers int) func() (*instance, error) {
	return func() (*instance, error) {
		cluster, err := fakekafka.Start(brokers, kafkaPartitions)
		if err != nil {
			return nil, err
		}
		value := strings.Join(cluster.Addrs, ",")
		return &instance{
			info:  Info{Service: service, Source: "kfake, in process", Address: value},
			value: value,
			stop:  func() error { cluster.Close(); return nil },
		}, nil
	}
}
