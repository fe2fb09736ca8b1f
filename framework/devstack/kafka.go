package devstack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
)

func kafkaFromEnvironment(ctx context.Context) (*instance, error) {
	value, err := named(Kafka)
	if err != nil {
		return nil, err
	}
	brokers := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
	if len(brokers) == 0 {
		return nil, fmt.Errorf("%s is %q: want host:port, several with commas between", variable[Kafka], value)
	}
	if err := askOnce(ctx, func(ctx context.Context) error { return askKafka(ctx, brokers, "") }); err != nil {
		return nil, fmt.Errorf("ask the brokers that %s names: %w", variable[Kafka], err)
	}
	value = strings.Join(brokers, ",")
	return &instance{info: Info{Service: Kafka, Source: variable[Kafka], Address: value, Real: true}, value: value}, nil
}

// apacheKafka runs one broker, its own controller, from the folder that scripts/kafka fills.
func (h hooks) apacheKafka(ctx context.Context) (*instance, error) {
	if h.skipInstalled {
		return nil, absent("Apache Kafka is not wanted")
	}
	home, err := findKafka()
	if err != nil {
		return nil, err
	}
	java, err := findJava(ctx, 17)
	if err != nil {
		return nil, javaMissing(home.dir, err)
	}
	return retryPort(h, func(port int) (*instance, error) {
		controller, err := h.port()
		if err != nil {
			return nil, err
		}
		r, err := newRoom(Kafka, nil)
		if err != nil {
			return nil, err
		}
		cluster, steps, err := home.prepare(r, java, port, controller)
		if err != nil {
			return nil, errors.Join(err, r.discard())
		}
		w, err := watch(r, steps...)
		if err != nil {
			return nil, err
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		brokers := []string{address}
		if err := w.await(ctx, func(ctx context.Context) error { return askKafka(ctx, brokers, cluster) }); err != nil {
			return nil, err
		}
		if err := w.await(ctx, func(ctx context.Context) error { return roundTrip(ctx, brokers) }); err != nil {
			return nil, err
		}
		return &instance{
			info:  Info{Service: Kafka, Source: "Apache Kafka " + home.version, Address: address, Real: true},
			value: address,
			stop:  w.stop,
		}, nil
	})
}

// prepare writes the broker's settings and formats its storage, and returns the commands that run it. cluster is the ID
// by which the broker is told from one of another stack.
func (home kafkaHome) prepare(r *room, java string, port, controller int) (cluster string, steps []step, err error) {
	cluster = kafkaID()
	logging := r.path("log4j2.properties")
	settings := r.path("server.properties")
	err = errors.Join(
		r.write("log4j2.properties", kafkaLogging),
		r.write("server.properties", fmt.Sprintf(kafkaSettings, port, controller, r.path("data"))),
	)
	if err != nil {
		return "", nil, err
	}
	run := func(args ...string) []string {
		common := []string{"-Dlog4j2.configurationFile=" + logging, "-cp", home.classPath()}
		return javaCommand(java, r, append(common, args...)...)
	}
	formatted, err := home.format(r, cluster)
	if err != nil {
		return "", nil, err
	}
	if !formatted {
		steps = append(steps, step{"TERM", run("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", settings)})
	}
	return cluster, append(steps, step{"TERM", run("kafka.Kafka", settings)}), nil
}

// format does what StorageTool would, from the checkpoint that scripts/kafka took of it: that saves the start of a JVM,
// about a second and a half. It reports false when the folder has no checkpoint.
func (home kafkaHome) format(r *room, cluster string) (bool, error) {
	checkpoint, err := os.ReadFile(home.path("bootstrap.checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := os.Mkdir(r.path("data"), 0o700); err != nil {
		return false, err
	}
	return true, errors.Join(
		r.write("data/bootstrap.checkpoint", string(checkpoint)),
		r.write("data/meta.properties", fmt.Sprintf("version=1\nnode.id=1\ncluster.id=%s\ndirectory.id=%s\n", cluster, kafkaID())),
	)
}

// kafkaID is a random ID in Kafka's own notation, which its tools write for clusters and folders.
func kafkaID() string {
	for {
		random := uuid.New()
		// Kafka avoids a leading dash too: its tools would read an option.
		if id := base64.RawURLEncoding.EncodeToString(random[:]); id[0] != '-' {
			return id
		}
	}
}

// fakeKafka runs franz-go's fake broker. Child processes reach it too, over its port.
func fakeKafka() (*instance, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(kafkaPartitions), kfake.AllowAutoTopicCreation())
	if err != nil {
		return nil, err
	}
	value := strings.Join(cluster.ListenAddrs(), ",")
	return &instance{
		info:  Info{Service: Kafka, Source: "kfake, in process", Address: value},
		value: value,
		stop: func() error {
			cluster.Close()
			return nil
		},
	}, nil
}
