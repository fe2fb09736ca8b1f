package pubsub_test

import (
	"context"
	"testing"
	"time"

	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// createSchema creates a schema of events with one field, "id", and returns its ID and the revision's.
func createSchema(t *testing.T, options []option.ClientOption) (id, revision string) {
	t.Helper()
	client, err := vkit.NewSchemaClient(t.Context(), options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	id = devtest.Topic(t)
	s, err := client.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{Parent: "projects/" + project, SchemaId: id, Schema: &pubsubpb.Schema{
		Type: pubsubpb.Schema_AVRO, Definition: `{"type": "record", "name": "Labour", "fields": [{"name": "id", "type": "string"}]}`,
	}})
	require.NoError(t, err)
	return id, s.RevisionId
}

// TestSchemaSettings: a topic is created with its schema. What differs in a topic that exists is logged, or changed under Update.
func TestSchemaSettings(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	client := rawClient(t, options)
	schema, revision := createSchema(t, options)
	topic, existing, other := devtest.Topic(t), devtest.Topic(t), devtest.Topic(t)
	want := pubsub.SchemaConfig{Name: schema, FirstRevision: revision}
	logged, log := newLog()
	with := func(resources pubsub.Resources) *pubsub.Transport {
		return connect(t, pubsub.Config{ClientOptions: options, Logger: log, Resources: resources, Schemas: map[string]pubsub.SchemaConfig{topic: want, existing: want}})
	}
	get := func(topic string) *pubsubpb.SchemaSettings {
		have, err := client.TopicAdminClient.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: topicName(topic)})
		require.NoError(t, err)
		return have.GetSchemaSettings()
	}
	consumer := transport.SubscriberConfig{Consumer: "c"}
	require.NoError(t, initialize(t, with(pubsub.CreateMissing), topic, consumer))
	assert.Equal(t, "projects/"+project+"/schemas/"+schema, get(topic).GetSchema())
	assert.Equal(t, pubsubpb.Encoding_JSON, get(topic).GetEncoding())
	assert.Equal(t, revision, get(topic).GetFirstRevisionId())
	require.NoError(t, initialize(t, with(pubsub.CreateMissing), other, consumer))
	assert.Nil(t, get(other), "the schema is of single topics")
	assert.Zero(t, logged.count("not as configured"))

	_, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(existing), SchemaSettings: &pubsubpb.SchemaSettings{Schema: get(topic).GetSchema(), Encoding: pubsubpb.Encoding_BINARY}})
	require.NoError(t, err)
	require.NoError(t, initialize(t, with(pubsub.CreateMissing), existing, consumer))
	assert.Equal(t, 2, logged.count("a topic is not as configured"))
	assert.Equal(t, 1, logged.count("setting=schema_settings.encoding have=BINARY want=JSON"))
	assert.Equal(t, 1, logged.count("setting=schema_settings.first_revision_id have=none want="+revision))
	require.NoError(t, initialize(t, with(pubsub.Update), existing, consumer))
	assert.Equal(t, pubsubpb.Encoding_JSON, get(existing).GetEncoding())

	missing := connect(t, pubsub.Config{ClientOptions: options, Schemas: map[string]pubsub.SchemaConfig{"no.schema": {Name: "nowhere"}}})
	err = initialize(t, missing, "no.schema", consumer)
	require.ErrorContains(t, err, "its schema projects/"+project+"/schemas/nowhere is missing: create it (gcloud pubsub schemas create), or correct Config.Schemas")
}

// TestSchemaRefusesOneMessage: Pub/Sub refuses a request as a whole if one of its messages does not fit the schema. Each message that fits
// is published, in the order of its key, and the others are refused for good.
func TestSchemaRefusesOneMessage(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	schema, _ := createSchema(t, options)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: options, Schemas: map[string]pubsub.SchemaConfig{topic: {Name: schema}}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true})
	const bad = `{"name": "?"}`
	good := func(id string) string { return `{"id": "` + id + `"}` }
	msgs := []*message.Message{
		newMessage("", good("1")), newMessage("", bad), newMessage("", good("2")),
		newMessage("k", good("k1")), newMessage("k", bad), newMessage("k", good("k2")),
		newMessage("l", good("l1")), newMessage("l", good("l2")),
	}
	results := batcher(t, tr).PublishBatch(t.Context(), topic, msgs)
	for i, err := range results {
		switch i {
		case 1, 4:
			require.ErrorIs(t, err, transport.ErrRejected, i)
			require.ErrorContains(t, err, "see that its payload fits the topic's schema, projects/"+project+"/schemas/"+schema)
		case 5:
			require.ErrorIs(t, err, transport.ErrNotSent, "it waits for the one before it")
		default:
			require.NoError(t, err, i)
		}
	}
	require.NoError(t, batcher(t, tr).PublishBatch(t.Context(), topic, msgs[5:6])[0], "the key goes on")
	got := map[string][]string{}
	for range 6 {
		msg := next(t, messages)
		got[transport.Key(msg)] = append(got[transport.Key(msg)], string(msg.Payload))
		msg.Ack()
	}
	require.ElementsMatch(t, []string{good("1"), good("2")}, got[""])
	require.Equal(t, []string{good("k1"), good("k2")}, got["k"])
	require.Equal(t, []string{good("l1"), good("l2")}, got["l"])
}

// TestSchemaAndTheOutbox: an event that the schema refuses is dead at once, with the reason, and stops no other.
func TestSchemaAndTheOutbox(t *testing.T) {
	t.Parallel()
	options := genuine(t)
	name, _ := createSchema(t, options)
	topic, pool, schema := devtest.Topic(t), devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	tr := connect(t, pubsub.Config{ClientOptions: options, Schemas: map[string]pubsub.SchemaConfig{topic: {Name: name}}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	p, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		for _, payload := range []string{`{"id": "1"}`, `{}`, `{"id": "2"}`} {
			msg := newMessage("", payload)
			msg.SetContext(ctx)
			if err := p.Publish(topic, msg); err != nil {
				return err
			}
		}
		return nil
	}))
	to, err := tr.Publisher()
	require.NoError(t, err)
	relay, err := outbox.NewRelay(pool, to, outbox.RelayConfig{Schema: schema})
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	for range 2 {
		next(t, messages).Ack()
	}
	require.Eventually(t, func() bool {
		var state, reason string
		err := pool.QueryRow(t.Context(), `select state, reason from `+schema+`.outbox_failed`).Scan(&state, &reason)
		return err == nil && state == "dead" && assert.Contains(t, reason, "the topic's schema, projects/"+project+"/schemas/"+name)
	}, wait, 10*time.Millisecond)
}
