package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// certified returns the broker's and the client's side of TLS on this machine.
func certified() (broker, client *tls.Config) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	authorities := x509.NewCertPool()
	authorities.AddCert(server.Certificate())
	return &tls.Config{Certificates: server.TLS.Certificates}, &tls.Config{RootCAs: authorities}
}

// refusal is the error of New, which comes within seconds.
func refusal(t *testing.T, config kafka.Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	_, err := kafka.New(ctx, config)
	require.Error(t, err)
	require.NoError(t, ctx.Err())
	require.ErrorContains(t, err, config.Brokers[0])
	require.NotContains(t, err.Error(), "hunter2")
	return err
}

// TestSASL: who has the password gets in, with and without TLS; who does not hears what to look at.
func TestSASL(t *testing.T) {
	t.Parallel()
	brokerTLS, clientTLS := certified()
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			for _, encrypted := range []bool{false, true} {
				options := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(mechanism, "user", "hunter2"), kfake.SeedTopics(1, "topic")}
				var config kafka.Config
				if encrypted {
					options = append(options, kfake.TLS(brokerTLS))
					config.TLS = clientTLS
				}
				cluster := fake(t, options...)
				config.Brokers = cluster.ListenAddrs()
				require.ErrorContains(t, refusal(t, config), "Config.SASL", "anonymous")
				config.SASL = kafka.SASL{Mechanism: mechanism, User: "user", Password: "hunter2"}
				requireAll(t, batcher(t, connect(t, config)).PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
				config.SASL.Password = "wrong"
				require.ErrorContains(t, refusal(t, config), "Config.SASL.Password")
			}
		})
	}
}

// Apache Kafka, unlike the fake, says what is wrong before it hangs up.
func TestSASLRefused(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "user", "hunter2"))
	config := kafka.Config{Brokers: cluster.ListenAddrs(), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "user", Password: "hunter2"}}
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		response.ErrorMessage = kmsg.StringPtr("invalid credentials")
		return response, nil, true
	})
	err := refusal(t, config)
	require.ErrorContains(t, err, "Config.SASL.User and Config.SASL.Password")
	require.ErrorContains(t, err, "invalid credentials")
	connect(t, config)

	token := &countedToken{}
	config.SASL = kafka.SASL{Mechanism: "OAUTHBEARER", Token: token}
	require.ErrorContains(t, refusal(t, config), "Config.SASL.Mechanism is OAUTHBEARER")
	require.Zero(t, token.asked.Load())
}

type countedToken struct{ asked atomic.Int32 }

func (c *countedToken) Token() (*sarama.AccessToken, error) {
	c.asked.Add(1)
	return &sarama.AccessToken{Token: "a-token"}, nil
}

// bearing is a fake that takes a token if valid says so.
func bearing(t *testing.T, valid func(token string) bool, options ...kfake.Opt) *kfake.Cluster {
	cluster := fake(t, append(options, kfake.SeedTopics(1, "topic"))...)
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return request.ResponseKind(), nil, request.(*kmsg.SASLHandshakeRequest).Mechanism == "OAUTHBEARER"
	})
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		token := strings.TrimSuffix(strings.TrimPrefix(string(request.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes), "n,,\x01auth=Bearer "), "\x01\x01")
		if !valid(token) {
			response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		}
		return response, nil, true
	})
	return cluster
}

// TestOAuthBearer: each connection gets a token from the provider. The fake does not know the mechanism, so its answers
// are given here.
func TestOAuthBearer(t *testing.T) {
	t.Parallel()
	var valid atomic.Bool
	cluster := bearing(t, func(token string) bool { return valid.Load() && token == "a-token" })
	token := &countedToken{}
	config := kafka.Config{Brokers: cluster.ListenAddrs(), SASL: kafka.SASL{Mechanism: "OAUTHBEARER", Token: token}}
	require.ErrorContains(t, refusal(t, config), "Config.SASL.Token")
	valid.Store(true)
	before := token.asked.Load()
	requireAll(t, batcher(t, connect(t, config)).PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
	require.GreaterOrEqual(t, token.asked.Load(), before+2, "of the first connection and the next")
}

// TestTLSRefused: an error of the handshake names the field that is wrong.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	brokerTLS, clientTLS := certified()
	encrypted := fake(t, kfake.TLS(brokerTLS))
	plain := httptest.NewServer(nil)
	t.Cleanup(plain.Close)
	for want, config := range map[string]kafka.Config{
		"it may want Config.TLS":          {Brokers: encrypted.ListenAddrs()},
		"this port does not speak TLS":    {Brokers: []string{plain.Listener.Addr().String()}, TLS: clientTLS},
		"Config.TLS.RootCAs lacks":        {Brokers: encrypted.ListenAddrs(), TLS: &tls.Config{}},
		"Config.TLS.ServerName, or else ": {Brokers: encrypted.ListenAddrs(), TLS: &tls.Config{RootCAs: clientTLS.RootCAs, ServerName: "elsewhere.invalid"}},
	} {
		require.ErrorContains(t, refusal(t, config), want)
	}
}

// Brokers that keep silent are asked at once, not one after another.
func TestNewGivesUp(t *testing.T) {
	t.Parallel()
	silent := make([]string, 3)
	for i := range silent {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, listener.Close()) })
		silent[i] = listener.Addr().String()
	}
	err := refusal(t, kafka.Config{Brokers: silent})
	for _, address := range silent {
		require.ErrorContains(t, err, "broker "+address+": no answer within 4.5s")
	}
	connect(t, kafka.Config{Brokers: slices.Concat(silent, fake(t).ListenAddrs())})
}
