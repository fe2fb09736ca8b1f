package outbox_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

const (
	relayProcess = "MILLRACE_TEST_RELAY" // the schema of the outbox
	relayOption  = "MILLRACE_TEST_RELAY_OPTION"
	relayDSN     = "MILLRACE_TEST_RELAY_DSN"

	countsOften  = "counts often"           // an option
	whileThereIs = "outage while there is " // and a file's name: an option
	toKafka      = " to Kafka at "          // between a Delivery and brokers: an option; losing and without may follow
	fromWAL      = "from the WAL"           // an option, which others may follow: the WAL wakes the relay, and no poll
	lands        = "lands "                 // an option, which others may follow, but not fromWAL: it lands the events in the WAL
	troubledBy   = "troubled by files in "  // and a folder's name: an option
)

// deliveries is a broker that several relay processes publish to: a pipe that all of them write to, one line for each
// event. Lines keep the order in which they were written, so first deliveries can be told from repeated ones.
type deliveries struct {
	t    testing.TB
	read *os.File
	to   *os.File
	dsn  string // of the relays' database; "": the one that tests share
	log  lockedBuffer

	mu    sync.Mutex
	lines []delivery
	ended chan struct{}
}

type delivery struct{ key, payload string }

func newDeliveries(t testing.TB) *deliveries {
	read, to, err := os.Pipe()
	require.NoError(t, err)
	d := &deliveries{t: t, read: read, to: to, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			var one delivery
			if _, err := fmt.Sscanf(lines.Text(), "%q %q", &one.key, &one.payload); err != nil {
				t.Errorf("line %q: %v", lines.Text(), err)
				return
			}
			d.mu.Lock()
			d.lines = append(d.lines, one)
			d.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		to.Close()
		<-d.ended
		read.Close()
	})
	return d
}

func (d *deliveries) all() []delivery { return d.since(0) }

// since returns the deliveries but the first n.
func (d *deliveries) since(n int) []delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines[n:])
}

// relay starts a process that relays the schema's outbox to the pipe, and returns once it has begun: a busy machine takes
// longer for that than some are to live.
func (d *deliveries) relay(schema, option string) *exec.Cmd {
	begun, begins, err := os.Pipe()
	require.NoError(d.t, err)
	defer begun.Close()
	dsn := d.dsn
	if dsn == "" {
		dsn = devtest.Pool(d.t).Config().ConnString()
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayProcess+"="+schema, relayOption+"="+option, relayDSN+"="+dsn)
	cmd.ExtraFiles = []*os.File{d.to, begins}
	cmd.Stderr = io.MultiWriter(d.t.Output(), &d.log)
	err = cmd.Start()
	begins.Close()
	require.NoError(d.t, err)
	_, err = io.Copy(io.Discard, begun) // until the process closes its end
	require.NoError(d.t, err)
	return cmd
}

// fallbacks counts how often the relay process has told that it cannot read the WAL.
func (d *deliveries) fallbacks(process int) int {
	return strings.Count(d.log.String(), fmt.Sprintf(`msg="the WAL cannot be read: reading rows meanwhile" process=%d `, process))
}

// kill ends a process without a chance for it to do anything.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()         // so it says
}

// pipe is the broker as the process sees it.
type pipe struct {
	file   *os.File
	outage string // while there is this file, nothing is taken: it gets the keys
}

func (p pipe) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	if file, err := os.OpenFile(p.outage, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		defer file.Close()
		for i, m := range msgs {
			fmt.Fprintln(file, transport.Key(m))
			errs[i] = errRefused
		}
		return errs
	}
	for i, m := range msgs {
		errs[i] = p.Publish(topic, m)
	}
	return errs
}

func (p pipe) Publish(_ string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if _, err := fmt.Fprintf(p.file, "%q %q\n", transport.Key(m), m.Payload); err != nil { // one write: atomic below 4 KB
			return err
		}
		if string(m.Payload) == "kills its relay" {
			kill := os.Process{Pid: os.Getpid()}
			_ = kill.Kill()
			select {}
		}
	}
	return nil
}

func (p pipe) Close() error { return nil }

// runRelayProcess is the process.
func runRelayProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := pgxpool.ParseConfig(os.Getenv(relayDSN))
	if err != nil {
		return err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = os.Getenv(relayProcess) // by which a test finds its connections
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	option, byWAL := strings.CutPrefix(os.Getenv(relayOption), fromWAL)
	option, landing := strings.CutPrefix(option, lands)
	outage, _ := strings.CutPrefix(option, whileThereIs)
	var broker message.Publisher = pipe{os.NewFile(3, "deliveries"), outage}
	inFlight, timeout := maxInFlight, 30*time.Second
	if files, ok := strings.CutPrefix(option, troubledBy); ok {
		trouble := trouble(files)
		broker, timeout = troubledPipe{broker.(pipe), trouble}, 2*time.Second
		if trouble.is("tenfold") {
			inFlight *= 10
		}
		defer trouble.exhaust(ctx, pool)()
	}
	delivery := outbox.AtLeastOnce
	if how, where, ok := strings.Cut(option, toKafka); ok {
		if err := delivery.UnmarshalText([]byte(how)); err != nil {
			return err
		}
		k, publisher, err := kafkaOf(ctx, where, pool)
		if err != nil {
			return err
		}
		defer k.Close()
		broker = publisher
	}
	source, poll := outbox.Table, 20*time.Millisecond
	if byWAL {
		source, poll = outbox.WAL, time.Hour
	}
	where := outbox.Rows
	if landing {
		where = outbox.Log
	}
	relay, err := outbox.NewRelay(pool, broker, outbox.RelayConfig{
		Delivery: delivery, Source: source, Store: where,
		Schema: os.Getenv(relayProcess), LeaseTTL: 2 * time.Second, BatchSize: 50, MaxInFlight: inFlight, PollInterval: poll,
		PublishTimeout: timeout,
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("process", os.Getpid()),
	})
	if err != nil {
		return err
	}
	outbox.WithCrashPause(relay, 100*time.Millisecond)
	if option == countsOften {
		outbox.WithJournal(relay, 50*time.Millisecond)
	}
	if err := os.NewFile(4, "begun").Close(); err != nil {
		return err
	}
	return relay.Run(ctx)
}

const maxInFlight = 100

func TestMain(m *testing.M) {
	if os.Getenv(relayProcess) != "" {
		if err := runRelayProcess(); err != nil {
			fmt.Fprintln(os.Stderr, "relay process "+strconv.Itoa(os.Getpid())+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	devtest.Main(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),                     // sarama's, one for the process
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler")) // looks for its end every 10 s only, and then ends
}
