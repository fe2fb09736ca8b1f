package kafka_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// logged collects what is logged. It is safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines are those that contain the text.
func (l *logged) lines(text string) (lines []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// TestAbortFirst: after a failure the transaction is aborted before the next epoch is asked for. Asked for an epoch with the
// transaction open, Kafka's coordinator aborts it in an epoch of its own choice, and then takes the member for a process that
// another one has replaced.
func TestAbortFirst(t *testing.T) {
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		for name, decide := range map[string]func(kmsg.Key, int) fate{
			"the outputs' answer is lost":        nth(kmsg.Produce, 3, loseAnswer),
			"the offsets' answer is lost":        nth(kmsg.TxnOffsetCommit, 3, loseAnswer),
			"the commit's answer is lost":        nth(kmsg.EndTxn, 3, loseAnswer),
			"the first transaction is cut short": nth(v.first, 1, loseRequest),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := newCopying(t, brokers(t), 500)
				process, log := newFaultNet(decide), &logged{}
				p := c.start(t, v.of(c.config(kafka.Config{Dial: process.dial, Logger: log.logger()})), nil)
				<-process.happened
				c.await(t)
				p.stop(t)
				c.exactlyOnce(t)
				require.NotContains(t, log.String(), "another process has this transactional ID")
				require.Contains(t, log.String(), "a transaction failed")
			})
		}
	})
}
