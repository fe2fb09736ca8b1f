package outbox_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

var (
	onceEvents = flag.Int("once", 0, "how many events TestPublishedOnce publishes at least, by four relays, on three brokers and a PostgreSQL server of its own, which are attacked too; "+
		"0: about two thousand, by two relays on servers that tests share")
	onceWithout = flag.String("once-without", "", "a rule that the relays of TestPublishedOnce -once leave out: progress, ids or commit. The test then passes if that does harm: events come twice without progress, and are lost without the others")
	onceConsole = flag.String("once-console", "", "a folder with the jars of org.apache.kafka:kafka-tools and of what that needs: Kafka's console consumer reads the topic too")
)

// onceServers are servers of a test's own, and what has happened to them.
type onceServers struct {
	kafka    *devstack.KafkaCluster
	postgres *devstack.Server
	admin    *kadm.Client
	noted    string        // a file: answers of brokers that relays have lost
	bounce   chan struct{} // takes a broker down
	rest     func()        // ends that

	kills, stops      int          // of relays
	crashes, restores int          // of PostgreSQL
	accused           int          // events that were dead for a time
	bounces, moves    atomic.Int64 // of brokers, and of the leaders of the transactions' log
}

// newOnceAlone is newOnceFixture on servers of its own.
func newOnceAlone(t *testing.T) *onceFixture {
	alone := &onceServers{
		kafka:    devtest.Kafka(t, devstack.KafkaConfig{Settings: map[string]string{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}}),
		postgres: devtest.Postgres(t, devstack.ServerConfig{}),
		noted:    filepath.Join(t.TempDir(), "lost"), bounce: make(chan struct{}),
	}
	require.NoError(t, os.WriteFile(alone.noted, nil, 0o600))
	f := &onceFixture{
		fixture: newCluster(t, devtest.PoolOn(t, alone.postgres.DSN()), "once").fixture,
		brokers: alone.kafka.Brokers(), topic: devtest.Topic(t), pipes: newDeliveries(t), alone: alone,
	}
	f.pipes.dsn = alone.postgres.DSN()
	f.sentTable()
	client := f.kafka()
	t.Cleanup(client.Close)
	alone.admin = kadm.NewClient(client)
	bounced := make(chan struct{})
	go func() {
		defer close(bounced)
		f.bounceBrokers()
	}()
	alone.rest = sync.OnceFunc(func() { close(alone.bounce); <-bounced })
	t.Cleanup(alone.rest)
	return f
}

// once starts a relay that publishes in transactions.
func (f *onceFixture) once() *exec.Cmd {
	if f.alone == nil {
		return f.relay(outbox.Transactional)
	}
	option := "transactional" + toKafka + strings.Join(f.brokers, ",") + losing + f.alone.noted
	if *onceWithout != "" {
		option += without + *onceWithout
	}
	return f.start(option)
}

// TestPublishedOnce: relays are killed while they publish, and are stopped until others have their shards. Who reads what is
// committed gets each event once, in the order of its key. With -once the brokers are bounced and their leaders are moved, answers of theirs are
// lost, and PostgreSQL is killed and restored from a dump, which sets its sequences back:
//
//	go test ./outbox -run 'TestPublishedOnce$' -count=1 -timeout 40m -v -once 100000
func TestPublishedOnce(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	began := time.Now()
	rounds, each, relays := devtest.Storm(24, 8), 150, make([]*exec.Cmd, 2)
	var f *onceFixture
	if *onceEvents > 0 {
		rounds, relays = min(max(16, *onceEvents/1000), 96), make([]*exec.Cmd, 4)
		each, f = *onceEvents/rounds+1, newOnceAlone(t)
	} else {
		f = newOnceFixture(t)
	}
	for i := range relays {
		relays[i] = f.once()
	}
	for i := range rounds {
		f.round(i, each, relays)
		f.count(func(a *onceServers) {
			t.Logf("%5.0f s: round %d of %d: %d rows are left; %d bounces", time.Since(began).Seconds(), i+1, rounds, f.rows(), a.bounces.Load())
		})
	}
	f.count(func(a *onceServers) { a.rest() })
	f.left(0)
	v := f.read()
	if f.alone != nil {
		f.report(began, v)
	}
	if *onceWithout != "" && f.alone != nil {
		require.True(t, onceRules[*onceWithout].harm(v), "nothing went wrong: %+v", v)
		return
	}
	require.Equal(t, onceVerdict{}, v)
}

// TestPublishedOnceFromTheWAL: the relays read the WAL. One that goes on when others have had its shards may still have rows that were published
// and deleted meanwhile.
func TestPublishedOnceFromTheWAL(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := &onceFixture{fixture: logged(t), brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), topic: devtest.Topic(t), pipes: newDeliveries(t), source: fromWAL}
	f.pipes.dsn = f.pool.Config().ConnString()
	f.sentTable()
	relays := []*exec.Cmd{f.once(), f.once()}
	for i := range devtest.Storm(16, 4) {
		f.round(i, 150, relays)
	}
	f.left(0)
	require.Equal(t, onceVerdict{}, f.read())
}

// round adds events, and lets a fault happen while relays are at work.
func (f *onceFixture) round(i, each int, relays []*exec.Cmd) {
	before := f.rows()
	if f.alone != nil && i%6 == 2 {
		f.alone.bounce <- struct{}{} // waits until the last bounce is over
	}
	f.add(each)
	f.left(before + each*2/3) // it is at work
	victim := i % len(relays)
	switch {
	case i%4 == 3: // it believes to have its leases when it goes on
		require.NoError(f.t, relays[victim].Process.Signal(syscall.SIGSTOP))
		f.left(0)
		f.add(100)
		require.NoError(f.t, relays[victim].Process.Signal(syscall.SIGCONT))
		f.count(func(a *onceServers) { a.stops++ })
		return
	case f.alone != nil && i%16 == 5:
		f.crash()
		return
	case f.alone != nil && i%32 == 9:
		f.restoreEmpty(each, relays)
		return
	case f.alone != nil && i%32 == 25, f.alone != nil && i%16 == 13 && i < 16:
		f.restorePending(each, relays)
		return
	}
	f.replace(relays, victim)
}

func (f *onceFixture) count(what func(*onceServers)) {
	if f.alone != nil {
		what(f.alone)
	}
}

// pardoned retries events that are dead because several relays were killed in a row while they sent them, as an operator does. It returns
// whether there were any.
func (f *onceFixture) pardoned() bool {
	if f.alone == nil {
		return false
	}
	var dead int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select count(*) from `+f.schema+`.outbox_failed where state = 'dead'`).Scan(&dead))
	if dead == 0 {
		return false
	}
	_, err := outboxadmin.Retry(f.t.Context(), f.pool, f.schema, outboxadmin.Selection{}, outboxadmin.By{Actor: "a test"})
	require.NoError(f.t, err)
	f.alone.accused += dead
	return true
}

// replace kills a relay, and starts another.
func (f *onceFixture) replace(relays []*exec.Cmd, i int) {
	kill(relays[i])
	f.count(func(a *onceServers) { a.kills++ })
	relays[i] = f.once()
}

// crash kills PostgreSQL, and starts it again.
func (f *onceFixture) crash() {
	require.NoError(f.t, f.alone.postgres.Crash(f.t.Context()))
	require.NoError(f.t, f.alone.postgres.Start(f.t.Context()))
	f.pool.Reset()
	eventually(f.t, "PostgreSQL is back", func() bool { return f.pool.Ping(f.t.Context()) == nil })
	f.alone.crashes++
}

func (f *onceFixture) dump() []byte {
	return output(f.t, devtest.Tool(f.t, f.alone.postgres, "pg_dump", "--schema="+f.schema, f.alone.postgres.DSN()))
}

// restore kills PostgreSQL and restores the dump. What was committed since is forgotten, and its numbers are given out again.
func (f *onceFixture) restore(dump []byte) {
	f.crash()
	_, err := f.pool.Exec(f.t.Context(), `drop schema `+f.schema+` cascade`)
	require.NoError(f.t, err)
	psql := devtest.Tool(f.t, f.alone.postgres, "psql", "--set=ON_ERROR_STOP=1", "--quiet", f.alone.postgres.DSN())
	psql.Stdin = bytes.NewReader(dump)
	output(f.t, psql)
	f.pool.Reset()
	f.alone.restores++
}

// restoreEmpty restores an outbox without rows. Most events since were published, and the progress of each shard has their numbers when new
// events get them. One relay is stopped meanwhile, and goes on with events that the database has forgotten.
func (f *onceFixture) restoreEmpty(each int, relays []*exec.Cmd) {
	f.left(0)
	dump := f.dump()
	f.add(each)
	f.left(each / 2)
	require.NoError(f.t, relays[0].Process.Signal(syscall.SIGSTOP))
	f.alone.stops++
	for i := range relays[1:] {
		kill(relays[1+i])
		f.alone.kills++
	}
	f.restore(dump)
	f.add(each)
	for i := range relays[1:] {
		relays[1+i] = f.once()
	}
	f.left(each / 2)
	require.NoError(f.t, relays[0].Process.Signal(syscall.SIGCONT))
}

// restorePending restores an outbox whose relays were killed at work: some of its rows are published, and only the progress tells which.
func (f *onceFixture) restorePending(each int, relays []*exec.Cmd) {
	for i := range relays {
		kill(relays[i])
		f.alone.kills++
	}
	dump := f.dump()
	f.add(each)
	f.restore(dump)
	f.add(each)
	for i := range relays {
		relays[i] = f.once()
	}
}

// bounceBrokers takes one broker after another down, by SIGKILL or SIGTERM, and starts it again. Then it moves the leaders of the log of
// transactions, whose leaders are the transactions' coordinators, and of the progress.
func (f *onceFixture) bounceBrokers() {
	a, ctx := f.alone, context.Background()
	for range a.bounce {
		n := int(a.bounces.Load())
		broker := n%3 + 1
		var err error
		if n%2 == 0 {
			if err = a.kafka.Kill(ctx, broker); err == nil {
				err = a.kafka.AwaitFenced(ctx, broker)
			}
		} else {
			err = a.kafka.Terminate(ctx, broker)
		}
		if assert.NoError(f.t, err) && assert.NoError(f.t, a.kafka.Start(ctx, broker)) && assert.NoError(f.t, a.kafka.AwaitInSync(ctx)) {
			assert.NoError(f.t, f.moveLeaders(ctx))
		}
		a.bounces.Add(1)
	}
}

// moveLeaders makes another replica of each partition its leader.
func (f *onceFixture) moveLeaders(ctx context.Context) error {
	topics, err := f.alone.admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return err
	}
	var assign kadm.AlterPartitionAssignmentsReq
	var elect kadm.TopicsSet
	topics.EachPartition(func(p kadm.PartitionDetail) {
		if p.Topic != "__transaction_state" && !strings.HasPrefix(p.Topic, "millrace.progress.") {
			return
		}
		next := p.Replicas[0]
		for i, r := range p.Replicas {
			if r == p.Leader {
				next = p.Replicas[(i+1)%len(p.Replicas)]
			}
		}
		order := []int32{next}
		for _, r := range p.Replicas {
			if r != next {
				order = append(order, r)
			}
		}
		assign.Assign(p.Topic, p.Partition, order)
		elect.Add(p.Topic, p.Partition)
	})
	if _, err := f.alone.admin.AlterPartitionAssignments(ctx, assign); err != nil {
		return err
	}
	results, err := f.alone.admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, elect)
	for _, r := range results["__transaction_state"] {
		if r.Err == nil {
			f.alone.moves.Add(1)
		}
	}
	return err
}

// report logs what has happened, and requires that nothing was left out.
func (f *onceFixture) report(began time.Time, v onceVerdict) {
	a := f.alone
	notes, err := os.ReadFile(a.noted)
	require.NoError(f.t, err)
	lost := map[string]int{}
	for line := range strings.Lines(string(notes)) {
		lost[strings.TrimSpace(line)]++
	}
	var committed int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select count(*) from `+f.schema+`.sent`).Scan(&committed))
	f.t.Logf("%.0f s on %s and %s: %d events, %d of which the database has not forgotten; %d kills and %d stops of relays; %d kills of PostgreSQL, %d restores of a dump; "+
		"%d bounces of brokers, %d moves of coordinators; %d events dead for a time; lost answers %v; %+v",
		time.Since(began).Seconds(), a.kafka.Source(), a.postgres.Source(), f.sent, committed, a.kills, a.stops, a.crashes, a.restores, a.bounces.Load(), a.moves.Load(), a.accused, lost, v)
	if *onceEvents >= 100_000 {
		assert.GreaterOrEqual(f.t, f.sent, *onceEvents)
		assert.GreaterOrEqual(f.t, a.kills+a.stops, 60)
	}
	assert.GreaterOrEqual(f.t, a.bounces.Load(), int64(3))
	assert.Positive(f.t, a.moves.Load())
	assert.GreaterOrEqual(f.t, a.restores, 2)
	for _, request := range []string{"FindCoordinator", "InitProducerID", "Metadata", "Produce", "EndTxn", "Fetch", "ListOffsets"} {
		assert.Positive(f.t, lost[request], request)
	}
	if *onceConsole != "" {
		by := f.console()
		f.t.Logf("Kafka's console consumer: %+v", by)
		assert.Equal(f.t, v, by)
	}
}

// console judges what Kafka's console consumer prints.
func (f *onceFixture) console() onceVerdict {
	reader := exec.CommandContext(f.t.Context(), "java", "-Dorg.apache.logging.log4j.level=OFF", "-cp", filepath.Join(*onceConsole, "*"), "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"--bootstrap-server", strings.Join(f.brokers, ","), "--topic", f.topic, "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "20000",
		"--property", "print.key=true", "--property", "print.partition=true", "--property", "print.offset=true", "--property", "key.separator=\t")
	var records []onceRecord
	for line := range strings.Lines(string(output(f.t, reader))) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(f.t, fields, 4, line)
		records = append(records, onceRecord{fields[2], fields[3], fields[0] + " " + fields[1]})
	}
	f.t.Logf("Kafka's console consumer has read %d records", len(records))
	return f.judge(records)
}
