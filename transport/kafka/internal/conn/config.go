// Package conn connects to brokers and sends requests to them. No other package sends requests.
package conn

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"github.com/millrace-go/millrace/transport/kafka/internal/meter"
)

// Scope is the name of the instrumentation scope of metrics and traces.
const Scope = "github.com/millrace-go/millrace/transport/kafka"

const (
	// dialTimeout bounds the opening of one connection.
	dialTimeout = 5 * time.Second
	// probeTimeout bounds how long New waits for the first connection, so that the error for a wrong setting comes within 5 s.
	probeTimeout = 4500 * time.Millisecond
	// brokerTimeout is how long a broker may wait for its replicas before it answers a produce request.
	brokerTimeout = 10 * time.Second
	// ReadTimeout detects connections on which nothing arrives any more. It is longer than brokerTimeout, which a broker may take.
	ReadTimeout = 20 * time.Second
	// FlushTimeout bounds the work after the drain: commits, leaving the group, publishes in flight.
	FlushTimeout = 5 * time.Second
	// RetryWait is the wait before a failed operation of a consumer is retried. sarama would wait for 2 s.
	RetryWait = 250 * time.Millisecond
	// MetadataInterval is how soon a publisher uses partitions that were added to a topic.
	MetadataInterval = time.Minute
)

// Config says how to connect, as kafka.Config describes it.
type Config struct {
	Brokers  []string
	ClientID string
	Version  string
	Rack     string
	TLS      *tls.Config
	NewTLS   func() *tls.Config // the TLS settings for each new connection; nil: TLS
	SASL     SASL
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Meter    *meter.Meter // of all requests; nil: none
}

// SASL is kafka.SASL.
type SASL struct {
	Mechanism        string
	User             string
	Password         string
	Token            sarama.AccessTokenProvider
	TokenURL         string
	ClientID         string
	ClientSecretFile string
	Scopes           []string
}

// tls returns a function with the TLS settings of the next connection, or nil for no encryption.
func (c Config) tls() func() *tls.Config {
	if c.TLS != nil && c.NewTLS == nil {
		return func() *tls.Config { return c.TLS }
	}
	return c.NewTLS
}

// clientConfig returns the settings that all clients share. Connections end with ctx. The client first connects to the broker first; ""
// means any.
func (c Config) clientConfig(ctx context.Context, first string) *sarama.Config {
	s := sarama.NewConfig()
	s.ClientID = c.ClientID
	s.Version, _ = sarama.ParseKafkaVersion(c.Version) // valid
	s.RackID = c.Rack
	s.Net.DialTimeout = dialTimeout
	s.Net.ReadTimeout = ReadTimeout
	s.Net.WriteTimeout = ReadTimeout
	s.Net.Proxy.Enable = true
	s.Net.Proxy.Dialer = &dialer{ctx: ctx, dial: c.Dial, tls: c.tls(), meter: c.Meter, first: first}
	s.Metadata.Full = false // only of the topics that are used
	s.Metadata.AllowAutoTopicCreation = false
	if c.SASL.Mechanism != "" {
		s.Net.SASL.Enable = true
		s.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		s.Net.SASL.User = c.SASL.User
		s.Net.SASL.Password = c.SASL.Password
		s.Net.SASL.TokenProvider = c.SASL.Token
		hash := scram.SHA256
		if c.SASL.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = scram.SHA512
		}
		s.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	}
	return s
}
