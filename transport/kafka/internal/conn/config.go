// Package conn is how brokers are reached, and what they are asked. It is the only room that sends a request.
package conn

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// Scope names the origin of metrics and traces.
const Scope = "github.com/millrace-go/millrace/transport/kafka"

const (
	// dialTimeout bounds the opening of one connection, and what New waits for the first one.
	dialTimeout = 5 * time.Second
	// brokerTimeout is how long a broker may wait for its replicas before it answers a produce request.
	brokerTimeout = 10 * time.Second
	// ReadTimeout finds connections that have become black holes. It is above what a broker may take: brokerTimeout.
	ReadTimeout = 20 * time.Second
	// FlushTimeout bounds what follows the drain: commits, leaving the group, what is being published.
	FlushTimeout = 5 * time.Second
	// RetryWait is the wait before what failed while consuming is tried again, where sarama would wait for 2 s.
	RetryWait = 250 * time.Millisecond
	// MetadataInterval is how soon a publisher uses partitions that a topic has got.
	MetadataInterval = time.Minute
)

// Config is how brokers are reached, as kafka.Config describes it.
type Config struct {
	Brokers  []string
	ClientID string
	Version  string
	Rack     string
	TLS      *tls.Config
	NewTLS   func() *tls.Config // TLS as each new connection has it; nil: TLS
	SASL     SASL
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
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

// tls returns what encrypts the next connection; nil: nothing does.
func (c Config) tls() func() *tls.Config {
	if c.TLS != nil && c.NewTLS == nil {
		return func() *tls.Config { return c.TLS }
	}
	return c.NewTLS
}

// clientConfig is what all clients have in common. Connections end with ctx. The client begins with the broker first; "" is
// any.
func (c Config) clientConfig(ctx context.Context, first string) *sarama.Config {
	s := sarama.NewConfig()
	s.ClientID = c.ClientID
	s.Version, _ = sarama.ParseKafkaVersion(c.Version) // valid
	s.RackID = c.Rack
	s.Net.DialTimeout = dialTimeout
	s.Net.ReadTimeout = ReadTimeout
	s.Net.WriteTimeout = ReadTimeout
	s.Net.Proxy.Enable = true
	s.Net.Proxy.Dialer = &dialer{ctx: ctx, dial: c.Dial, tls: c.tls(), first: first}
	s.Metadata.Full = false // of the topics that are used
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
