package kafka_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func TestConfigBrokers(t *testing.T) {
	t.Setenv("MILLRACE_KAFKA_BROKERS", "a:1, b:2,")
	require.Equal(t, []string{"a:1", "b:2"}, kafka.Config{}.WithDefaults().Brokers)
	require.Equal(t, []string{"c:3"}, kafka.Config{Brokers: []string{"c:3"}}.WithDefaults().Brokers)
	t.Setenv("MILLRACE_KAFKA_BROKERS", "")
	_, err := kafka.New(t.Context(), kafka.Config{})
	require.ErrorContains(t, err, "MILLRACE_KAFKA_BROKERS")
}

func TestConfigDefaults(t *testing.T) {
	config := kafka.Config{Brokers: []string{"a:1"}, Consumers: map[string]kafka.ConsumerConfig{
		"c": {DeadLetter: kafka.DeadLetter{Topic: "dead"}, Retry: kafka.Retry{Min: time.Hour}},
	}}
	valid := config.WithDefaults()
	require.NoError(t, valid.Validate())
	require.Equal(t, kafka.Topics{Partitions: 4, ReplicationFactor: -1}, valid.Topics)
	require.Equal(t, kafka.ProducerConfig{MaxMessageBytes: 1_000_000, Timeout: time.Minute}, valid.Producer)
	require.Equal(t, kafka.Transaction{MaxRecords: 1000, MaxBytes: 8 << 20, MaxDelay: 100 * time.Millisecond, Timeout: 10 * time.Second, IDPrefix: "millrace"}, valid.Transaction)
	require.Equal(t, kafka.ConsumerConfig{Retry: kafka.Retry{Min: 100 * time.Millisecond, Max: time.Minute}, Prefetch: 500, SessionTimeout: 10 * time.Second}, valid.Consumer)
	require.Equal(t, 10, valid.Consumers["c"].DeadLetter.MaxAttempts)
	require.Equal(t, time.Hour, valid.Consumers["c"].Retry.Max)
	require.Zero(t, config.Consumers["c"].Prefetch, "the caller's own")
	require.Equal(t, 30*time.Second, valid.DrainTimeout)
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		want  string // "" for what is valid
		spoil func(*kafka.Config)
	}{
		{"", func(*kafka.Config) {}},
		{`Brokers has "a"`, func(c *kafka.Config) { c.Brokers = []string{"a"} }},
		{`Brokers has "a:abc"`, func(c *kafka.Config) { c.Brokers = []string{"b:1", "a:abc"} }},
		{`Brokers has "a:0"`, func(c *kafka.Config) { c.Brokers = []string{"a:0"} }},
		{`Brokers has "a:65536"`, func(c *kafka.Config) { c.Brokers = []string{"a:65536"} }},
		{"", func(c *kafka.Config) { c.Brokers = []string{"a:65535", "[::1]:1"} }},
		{`ClientID is "a b"`, func(c *kafka.Config) { c.ClientID = "a b" }},
		{`Rack is " a"`, func(c *kafka.Config) { c.Rack = " a" }},
		{`Version is "new"`, func(c *kafka.Config) { c.Version = "new" }},
		{"Version is 2.7.0: want 2.8.0 or later, because", func(c *kafka.Config) { c.Version = "2.7.0" }},
		{"Topics.Missing is Missing(2)", func(c *kafka.Config) { c.Topics.Missing = 2 }},
		{"Topics.Partitions is -1", func(c *kafka.Config) { c.Topics.Partitions = -1 }},
		{"Topics.ReplicationFactor is -2", func(c *kafka.Config) { c.Topics.ReplicationFactor = -2 }},
		{`Topics.Settings has "retention"`, func(c *kafka.Config) { c.Topics.Settings = kafka.TopicSettings{"retention": "1"} }},
		{"", func(c *kafka.Config) { c.Topics.Settings = kafka.TopicSettings{"min.insync.replicas": "2"} }},
		{"Producer.Compression is Compression(5)", func(c *kafka.Config) { c.Producer.Compression = 5 }},
		{"Producer.CompressionLevel is 1: want 0, because LZ4 has no levels", func(c *kafka.Config) { c.Producer.CompressionLevel = 1 }},
		{"Producer.CompressionLevel is 10: want 1 to 9 for Gzip", func(c *kafka.Config) { c.Producer.Compression, c.Producer.CompressionLevel = kafka.Gzip, 10 }},
		{"Producer.CompressionLevel is -1: want 1 to 22 for Zstd", func(c *kafka.Config) { c.Producer.Compression, c.Producer.CompressionLevel = kafka.Zstd, -1 }},
		{"", func(c *kafka.Config) { c.Producer.Compression, c.Producer.CompressionLevel = kafka.Zstd, 22 }},
		{"Producer.Partitioner is Partitioner(2)", func(c *kafka.Config) { c.Producer.Partitioner = 2 }},
		{"Producer.Keyless is Keyless(2)", func(c *kafka.Config) { c.Producer.Keyless = 2 }},
		{"Producer.MaxMessageBytes is -1", func(c *kafka.Config) { c.Producer.MaxMessageBytes = -1 }},
		{"Producer.Timeout is 1ms", func(c *kafka.Config) { c.Producer.Timeout = time.Millisecond }},
		{"Delivery is Delivery(2)", func(c *kafka.Config) { c.Delivery = 2 }},
		{"Transaction.MaxRecords is -1", func(c *kafka.Config) { c.Transaction.MaxRecords = -1 }},
		{"Transaction.MaxBytes is -1", func(c *kafka.Config) { c.Transaction.MaxBytes = -1 }},
		{"Transaction.Timeout is 1h", func(c *kafka.Config) { c.Transaction.Timeout = time.Hour }},
		{"Transaction.MaxDelay is 6s", func(c *kafka.Config) { c.Transaction.MaxDelay = 6 * time.Second }},
		{`Transaction.IDPrefix is "a b"`, func(c *kafka.Config) { c.Transaction.IDPrefix = "a b" }},
		{"DrainTimeout is -1s", func(c *kafka.Config) { c.DrainTimeout = -time.Second }},
		{`Config.Consumers["a.b"] is of no consumer: want 1 to 100 letters`, func(c *kafka.Config) { c.Consumers = map[string]kafka.ConsumerConfig{"a.b": c.Consumer} }},
		{`MaxBufferedBytes is 1000: want 16777216 or more`, func(c *kafka.Config) { c.MaxBufferedBytes = 1000 }},
		{`Consumers["x"].Prefetch is -1`, func(c *kafka.Config) { c.Consumers = map[string]kafka.ConsumerConfig{"x": {Prefetch: -1}} }},
		{`Consumers["100%d"].Prefetch is -1: want 1`, func(c *kafka.Config) { c.Consumers = map[string]kafka.ConsumerConfig{"100%d": {Prefetch: -1}} }},
		{"DeadLetter.MaxAttempts is 5 without", func(c *kafka.Config) { c.Consumer.DeadLetter.MaxAttempts = 5 }},
		{"DeadLetter.MaxAttempts is -1", func(c *kafka.Config) { c.Consumer.DeadLetter = kafka.DeadLetter{Topic: "dead", MaxAttempts: -1} }},
		{`DeadLetter.Topic is "a/b"`, func(c *kafka.Config) { c.Consumer.DeadLetter = kafka.DeadLetter{Topic: "a/b", MaxAttempts: 1} }},
		{`Consumer.EventID is "header:_watermill_message_uuid": this is where`, func(c *kafka.Config) { c.Consumer.EventID = kafka.EventIDFromHeader("_watermill_message_uuid") }},
		{`Consumer.EventID is "json:a..b": the path`, func(c *kafka.Config) { c.Consumer.EventID = kafka.EventIDFromJSON("a..b") }},
		{`Consumer.EventID is "message_id", which this broker does not have: want header:NAME, json:PATH or offset`, func(c *kafka.Config) { c.Consumer.EventID = transport.EventIDFromMessageID() }},
		{"", func(c *kafka.Config) { c.Consumer.EventID = kafka.EventIDFromOffset() }},
		{"Retry.Min is -1s", func(c *kafka.Config) { c.Consumer.Retry.Min = -time.Second }},
		{"Retry.Max is 1s", func(c *kafka.Config) { c.Consumer.Retry = kafka.Retry{Min: time.Minute, Max: time.Second} }},
		{"", func(c *kafka.Config) { c.Consumer.Join = []kafka.Assignment{kafka.Range, kafka.RoundRobin} }},
		{"Consumer.Join is [CooperativeSticky]: want", func(c *kafka.Config) { c.Consumer.Join = []kafka.Assignment{kafka.CooperativeSticky} }},
		{"Consumer.Join is [Range Range]: want", func(c *kafka.Config) { c.Consumer.Join = []kafka.Assignment{kafka.Range, kafka.Range} }},
		{"Consumer.Join is [Assignment(3)]: want", func(c *kafka.Config) { c.Consumer.Join = []kafka.Assignment{3} }},
		{"StartAt is StartAt(2)", func(c *kafka.Config) { c.Consumer.StartAt = 2 }},
		{"Assignment is Assignment(3)", func(c *kafka.Config) { c.Consumer.Assignment = 3 }},
		{`InstanceID is ".."`, func(c *kafka.Config) { c.Consumer.InstanceID = ".." }},
		{"SessionTimeout is 1s", func(c *kafka.Config) { c.Consumer.SessionTimeout = time.Second }},
	} {
		config := kafka.Config{Brokers: []string{"a:1"}}.WithDefaults()
		c.spoil(&config)
		if err := config.Validate(); c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "Config.")
			require.ErrorContains(t, err, c.want)
		}
	}
	all := kafka.Config{ClientID: "a b", DrainTimeout: -1}.Validate()
	for _, field := range []string{"Brokers", "ClientID", "Version", "DrainTimeout"} {
		require.ErrorContains(t, all, field)
	}
}

type token struct{}

func (token) Token() (*sarama.AccessToken, error) { return &sarama.AccessToken{Token: "t"}, nil }

func TestConfigSASL(t *testing.T) {
	const loopback, remote = "127.0.0.1:1", "kafka.example.com:1"
	for _, c := range []struct {
		want   string // "" for what is valid
		sasl   kafka.SASL
		broker string
		tls    *tls.Config
	}{
		{"", kafka.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}, loopback, nil},
		{"", kafka.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}, "localhost:1", nil},
		{"", kafka.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}, remote, &tls.Config{}},
		{"without Config.TLS", kafka.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}, remote, nil},
		{"without Config.TLS", kafka.SASL{Mechanism: "OAUTHBEARER", Token: token{}}, "10.0.0.1:1", nil},
		{"", kafka.SASL{Mechanism: "OAUTHBEARER", Token: token{}}, loopback, nil},
		{"SASL.Mechanism is OAUTHBEARER without a token", kafka.SASL{Mechanism: "OAUTHBEARER"}, loopback, nil},
		{"User or Password is set", kafka.SASL{Mechanism: "OAUTHBEARER", Token: token{}, Password: "hunter2"}, loopback, nil},
		{"", kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "u", Password: "hunter2"}, remote, nil},
		{"SASL.User is empty", kafka.SASL{Mechanism: "SCRAM-SHA-256", Password: "hunter2"}, remote, nil},
		{"SASL.Password is empty", kafka.SASL{Mechanism: "SCRAM-SHA-256", User: "u"}, remote, nil},
		{"SASL.Token or TokenURL is set", kafka.SASL{Mechanism: "SCRAM-SHA-256", User: "u", Password: "hunter2", Token: token{}}, remote, nil},
		{`Mechanism is "GSSAPI"`, kafka.SASL{Mechanism: "GSSAPI"}, loopback, nil},
		{"Mechanism is empty", kafka.SASL{User: "u"}, loopback, nil},
	} {
		err := kafka.Config{Brokers: []string{c.broker}, SASL: c.sasl, TLS: c.tls}.WithDefaults().Validate()
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
