package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/internal/fakepubsub"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/streams"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

func pubsubFromEnvironment(ctx context.Context) (*instance, error) {
	host, err := named(PubSub)
	if err != nil {
		return nil, err
	}
	fake := false
	err = askOnce(ctx, func(ctx context.Context) (err error) {
		if err = askPubSub(ctx, host); err == nil {
			fake, err = isPstest(ctx, host)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask the emulator that %s names: %w", variable[PubSub], err)
	}
	f, err := streams.Start(host)
	if err != nil {
		return nil, err
	}
	return &instance{
		info:  namedInfo(PubSub, host, fake),
		value: f.Address,
		stop:  f.Stop,
	}, nil
}

// installedEmulator runs Google's emulator from the Cloud SDK.
func (h hooks) installedEmulator(ctx context.Context) (*instance, error) {
	if h.skipInstalled {
		return nil, machine.Absent("the installed emulator is not wanted")
	}
	jar := emulatorJar()
	if jar == "" {
		return nil, machine.Absent("no Cloud SDK here has platform/pubsub-emulator")
	}
	java, err := machine.FindJava(ctx, 11)
	if err != nil {
		return nil, machine.JavaMissing(jar, err)
	}
	return retryPort(h, func(port int) (*instance, error) {
		r, err := watchdog.NewRoom(string(PubSub), nil)
		if err != nil {
			return nil, err
		}
		w, err := watchdog.Watch(r, watchdog.Step{Signal: "TERM", Argv: watchdog.JavaCommand(java, r, "-jar", jar, "--host=127.0.0.1", "--port="+strconv.Itoa(port))})
		if err != nil {
			return nil, err
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		err = w.Await(ctx, func(ctx context.Context) error {
			// Without this line in the log, the answer could be from the emulator of another stack that took the port first.
			if !strings.Contains(r.Logged(), "Server started, listening on "+strconv.Itoa(port)) {
				return errors.New("it does not listen yet")
			}
			return askPubSub(ctx, address)
		})
		if err != nil {
			return nil, err
		}
		f, err := streams.Start(address)
		if err != nil {
			return nil, errors.Join(err, w.Stop())
		}
		return &instance{
			info: Info{
				Service: PubSub,
				Source:  "Google Pub/Sub emulator " + machine.FindVersion(filepath.Base(jar)),
				Address: f.Address,
				Real:    true,
			},
			value: f.Address,
			stop:  func() error { return errors.Join(f.Stop(), w.Stop()) },
		}, nil
	})
}

// emulatorJar finds the emulator in the Cloud SDKs of this machine. It returns "" if none has it.
func emulatorJar() string {
	roots := []string{os.Getenv("CLOUDSDK_ROOT_DIR")}
	if gcloud, err := exec.LookPath("gcloud"); err == nil {
		if gcloud, err = filepath.EvalSymlinks(gcloud); err == nil {
			roots = append(roots, filepath.Dir(filepath.Dir(gcloud)))
		}
	}
	roots = append(roots, "/usr/lib/google-cloud-sdk", "/google-cloud-sdk")
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, "google-cloud-sdk"))
	}
	for _, root := range append(roots, "/opt/google-cloud-sdk") {
		if root == "" {
			continue
		}
		jars, _ := filepath.Glob(filepath.Join(root, "platform", "pubsub-emulator", "lib", "cloud-pubsub-emulator-*.jar")) // a bad pattern finds nothing
		if len(jars) > 0 {
			return jars[len(jars)-1]
		}
	}
	return ""
}

// fakePubSub runs the client library's fake. Child processes can use it too, over its port.
func fakePubSub() (*instance, error) {
	server := fakepubsub.Start("127.0.0.1:0")
	return &instance{
		info:  Info{Service: PubSub, Source: "pstest, in process", Address: server.Addr},
		value: server.Addr,
		stop:  server.Close,
	}, nil
}

// askPubSub returns nil if the emulator answers a call.
func askPubSub(ctx context.Context, host string) error {
	return pubsubCall(host, func(conn *grpc.ClientConn) error {
		_, err := pubsubpb.NewPublisherClient(conn).ListTopics(ctx, &pubsubpb.ListTopicsRequest{Project: "projects/millrace-ready", PageSize: 1})
		return err
	})
}

// isPstest tells the client library's fake from Google's emulator: the fake has no snapshots.
func isPstest(ctx context.Context, host string) (bool, error) {
	err := pubsubCall(host, func(conn *grpc.ClientConn) error {
		_, err := pubsubpb.NewSubscriberClient(conn).ListSnapshots(ctx, &pubsubpb.ListSnapshotsRequest{Project: "projects/millrace-ready", PageSize: 1})
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		return true, nil
	}
	return false, err
}

func pubsubCall(host string, call func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return call(conn)
}
