package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// TestConsumerReset: after a reset to the earliest event all events come again, and the claim runs none of them a second time;
// on Kafka that is refused while a process of the consumer runs.
func TestConsumerReset(t *testing.T) {
	for broker, service := range map[string]devstack.Service{"PubSub": devstack.PubSub, "Kafka": devstack.Kafka} {
		t.Run(broker, func(t *testing.T) {
			stack := devtest.Real(t, service)
			flags := []string{"--broker", "kafka", "--brokers", strings.Join(stack.KafkaBrokers(), ",")}
			if broker == "PubSub" {
				flags = []string{"--broker", "pubsub", "--project", "millrace-test"}
				t.Setenv("PUBSUB_EMULATOR_HOST", stack.PubSubHost())
			}
			o, topic := newOperator(t), devtest.Topic(t)
			o.run(cli.ExitOK, "migrate", "up")
			o.exec(`create table {schema}.effects (event_id text)`)
			if broker == "PubSub" {
				keepAcked(t, topic)
			}
			var deliveries atomic.Int64
			start := func() (stop func()) {
				tr, err := connectors[broker](t, "notify", devtest.Topic(t))
				require.NoError(t, err)
				c, err := claim.New(claim.NewPostgresStore(o.pool, claim.Schema(o.schema)), claim.Config{Service: "labour"})
				require.NoError(t, err)
				router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
				require.NoError(t, err)
				router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						produced, err := h(msg)
						deliveries.Add(1)
						return produced, err
					}
				}, c.Middleware)
				subscriber, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "labour.notify"})
				require.NoError(t, err)
				router.AddConsumerHandler("notify", topic, c.Subscriber("notify", subscriber), func(msg *message.Message) error {
					tx, _ := pgtx.From(msg.Context())
					_, err := tx.Exec(msg.Context(), `insert into `+o.schema+`.effects values ($1)`, msg.UUID)
					return err
				})
				devtest.Run(t, router)
				stop = func() { require.NoError(t, router.Close()); require.NoError(t, tr.Close()) }
				t.Cleanup(stop)
				return stop
			}
			await := func(n int64) {
				require.Eventually(t, func() bool { return deliveries.Load() >= n }, time.Minute, 10*time.Millisecond)
			}
			effects := func() (all []string) {
				require.NoError(t, o.pool.QueryRow(t.Context(), `select array_agg(event_id order by event_id) from `+o.schema+`.effects`).Scan(&all))
				return all
			}
			reset := func(more ...string) []string {
				return append(append([]string{"consumer", "reset", "--topic", topic, "--consumer", "labour.notify", "--to", "earliest"}, flags...), more...)
			}
			stop := start()
			tr, err := connectors[broker](t, "notify", devtest.Topic(t))
			require.NoError(t, err)
			defer func() { require.NoError(t, tr.Close()) }()
			p, err := tr.Publisher()
			require.NoError(t, err)
			ids := []string{"1", "2", "3"}
			for _, id := range ids {
				require.NoError(t, p.Publish(topic, message.NewMessage(id, []byte("{}"))))
			}
			await(3)
			if broker == "Kafka" {
				out := says(t, cli.ExitFailed, reset("--yes")...)
				assert.Contains(t, out, "processes of the consumer run, as members of its group (")
				assert.Contains(t, out, "stop them")
				assert.Contains(t, says(t, cli.ExitFailed, reset("--dry-run")...), "PARTITION", "a dry run says where it would go")
			}
			stop()
			assert.Contains(t, says(t, cli.ExitOK, reset("--dry-run")...), "Nothing was changed. With --yes consumer labour.notify goes on reading topic "+topic+" at: earliest.\n")
			out := says(t, cli.ExitOK, reset("--yes")...)
			assert.Contains(t, out, "Consumer labour.notify goes on reading topic "+topic+" at: earliest.\nEvents that it has handled and gets again are not run again by a claim;")
			if broker == "Kafka" {
				assert.Regexp(t, `PARTITION +FROM +TO\n0 +\S+ +0\n`, out)
			}
			var printed struct {
				DryRun bool `json:"dry_run"`
				Moves  []transport.Move
			}
			require.NoError(t, json.Unmarshal([]byte(says(t, cli.ExitOK, reset("--dry-run", "--json")...)), &printed))
			assert.True(t, printed.DryRun)
			for _, m := range printed.Moves {
				assert.Zero(t, m.To)
			}
			assert.Equal(t, ids, effects())
			start()
			await(6)
			require.NoError(t, p.Publish(topic, message.NewMessage("4", []byte("{}"))))
			await(7)
			assert.Equal(t, append(ids, "4"), effects(), "each took effect once")
		})
	}
}

// keepAcked makes a subscription that keeps what was acked, which the emulator does not do for a topic.
func keepAcked(t *testing.T, topic string) {
	const project = "projects/millrace-test"
	client, err := pubsub.NewClient(t.Context(), "millrace-test")
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: project + "/topics/" + topic})
	require.NoError(t, err)
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: project + "/subscriptions/" + topic + ".labour.notify", Topic: project + "/topics/" + topic,
		AckDeadlineSeconds: 60, RetainAckedMessages: true, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
	})
	require.NoError(t, err)
}

func TestConsumerResetCommandLine(t *testing.T) {
	t.Parallel()
	complete := "consumer reset --broker kafka --topic t --consumer c --yes "
	for line, want := range map[string]string{
		"consumer":                                  "the command is missing: want reset",
		"consumer reset --to earliest":              "--topic or --consumer is missing",
		"consumer reset --topic t --consumer c":     "want --dry-run to see what would be done, or --yes to do it",
		complete + "--dry-run":                      "want --dry-run to see what would be done, or --yes to do it",
		complete:                                    "--to is missing",
		complete + "--to soon":                      `--to is "soon": want a time such as`,
		complete + "--to latest 0:1":                `--to latest with "0:1": want nothing behind it`,
		complete + "--to offset":                    "want PARTITION:OFFSET behind it",
		complete + "--to offset 0:1 0:2":            `--to offset has "0:2": want PARTITION:OFFSET, such as 0:1200, and each partition once`,
		complete + "--to offset 5":                  `--to offset has "5"`,
		complete + "--to offset 0:-1":               `--to offset has "0:-1"`,
		complete + "--to snapshot":                  "want the name of one snapshot behind it",
		complete + "--to latest --broker memory":    "want pubsub or kafka",
		complete + "--to latest --brokers=nowhere":  `--brokers: kafka.brokers has "nowhere"`,
		complete + "--to latest --config nowhere.y": "there is no configuration file",
	} {
		code := cli.ExitUsage
		if strings.Contains(line, "--config") {
			code = cli.ExitFailed
		}
		assert.Contains(t, says(t, code, strings.Fields(line)...), want, line)
	}
	file := filepath.Join(t.TempDir(), "millrace.yaml")
	require.NoError(t, os.WriteFile(file, []byte("service: labour\nbroker: memory\n"), 0o600))
	assert.Contains(t, says(t, cli.ExitUsage, "consumer", "reset", "--config", file, "--topic", "t", "--consumer", "c", "--yes", "--to", "latest"), `--broker is "memory": want pubsub or kafka`)
}

// The broker to which a migration goes was reported as the wrong one as soon as the file had any other mistake.
func TestConsumerResetReportsOnlyWhatIsWrong(t *testing.T) {
	t.Parallel()
	file := configFile(t, "service: shop\nbroker: pubsub\nmigration: {to: kafka}\npubsub: {project_id: p}\nkafka: {brokers: [127.0.0.1:1]}\npostgres: {dsn: 'host=db'}\nshutdown_timeout: -1s\n")
	said := says(t, cli.ExitFailed, "consumer", "reset", "--broker", "kafka", "--topic", "t", "--consumer", "shop.notify", "--to", "latest", "--dry-run", "--config", file)
	assert.Contains(t, said, "shutdown_timeout is -1s")
	assert.NotContains(t, said, "migration.to")
}
