package outbox_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// Relay processes land events that are only in the WAL, publish them in transactions, and are killed in turn, before an event is landed and while
// they publish. Each event becomes one row. A reader of committed records gets it once, in the order of its key.
func TestPublishedOnceFromTheLog(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testPublishedOnceFromTheLog(t, source)
		})
	}
}

func testPublishedOnceFromTheLog(t *testing.T, source outbox.Source) {
	server := devtest.Postgres(t, devstack.ServerConfig{})
	l := newLanded(t, devtest.PoolOn(t, server.DSN()))
	f := &onceFixture{
		fixture: l.fixture, brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), topic: devtest.Topic(t),
		pipes: newDeliveries(t), source: lands,
	}
	if source == outbox.WAL {
		f.source = fromWAL + lands
	}
	f.pipes.dsn = server.DSN()
	f.publisher = f.intoTheLog()
	f.sentTable()
	relays := []*exec.Cmd{f.relay(outbox.Transactional), f.relay(outbox.Transactional)}
	l.awaitSlot()
	const each = 150
	for i := range devtest.Storm(9, 3) {
		f.add(each)
		if i%3 > 0 { // else nothing of it is landed yet
			l.landed(f.sent)
			f.left(each / 2)
		}
		kill(relays[i%2])
		relays[i%2] = f.relay(outbox.Transactional)
	}
	l.landed(f.sent)
	f.left(0)
	require.Len(t, l.made(), f.sent, "one row of each event")
	require.Equal(t, onceVerdict{}, f.read())
}

// landed waits until n rows were made of events.
func (l *landed) landed(n int) {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return len(l.made()) >= n }, patience, lookEvery, "%d events are landed", n)
}
