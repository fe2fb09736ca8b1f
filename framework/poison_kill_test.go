package framework_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
)

// A handler ends its process each time on one event of sixty. With Kafka's transactional delivery the event becomes a dead letter, and the
// others are copied once, in the order of their keys, in a service with a database and without one.
func TestPoisonThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, dsn := range map[string]func(t *testing.T) (dsn, schema string){
		"without PostgreSQL": func(*testing.T) (string, string) { return "", "" },
		"with PostgreSQL": func(t *testing.T) (string, string) {
			t.Helper()
			return devtest.Start(t, devstack.Postgres).PostgresDSN(), devtest.Schema(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJourney(t, true, func(c *copyingConfig) {
				c.Poison = &step{"key-3", 1}
				c.DSN, c.Schema = dsn(t)
			})
			const events = 60
			j.publish(events)
			deaths := 0
			j.eventually("all but one", func() bool {
				select {
				case <-j.process.Ended():
					require.ErrorContains(t, j.process.Err(), "exit status 3")
					deaths++
					j.start()
				default:
				}
				return j.copied.count() == events-1
			})
			require.GreaterOrEqual(t, deaths, 7)
			require.LessOrEqual(t, deaths, 12)
			dead := onlyRecord(t, j.config.Brokers, transport.DeadLetterTopic(j.config.Topics[0], j.config.Service+".copy-0"))
			require.Equal(t, "killed", dead[transport.DeadReasonMetadata])
			require.Equal(t, `{"Key":"key-3","N":1}`, dead[""])
			j.copied.mu.Lock()
			defer j.copied.mu.Unlock()
			for key, list := range j.copied.seen {
				if key == j.config.Poison.Key {
					require.Equal(t, []int{0, 2}, list)
				} else {
					require.Equal(t, []int{0, 1, 2}, list, key)
				}
			}
		})
	}
}

// onlyRecord waits for the record of a topic and returns its headers, and its value under "".
func onlyRecord(t *testing.T, brokers []string, topic string) map[string]string {
	t.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		records := reader.PollFetches(ctx).Records()
		require.NoError(t, ctx.Err(), "no record in %s", topic)
		if len(records) == 0 {
			continue
		}
		require.Len(t, records, 1)
		found := map[string]string{"": string(records[0].Value)}
		for _, h := range records[0].Headers {
			found[h.Key] = string(h.Value)
		}
		return found
	}
}
