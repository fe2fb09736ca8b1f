package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestConnectErrors: what is wrong with a setting of the connection is told within seconds, with the setting and the remedy.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	brokerTLS, clientTLS := certified()
	mutual := brokerTLS.Clone()
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	user := kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "user", Password: "hunter2"}
	known := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "user", "hunter2")}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	at := func(options ...kfake.Opt) []string { return fake(t, options...).ListenAddrs() }
	for name, c := range map[string]struct {
		config kafka.Config
		want   string
	}{
		"TLS is wanted":               {kafka.Config{Brokers: at(kfake.TLS(brokerTLS))}, "Config.TLS, which is not set: this port speaks TLS"},
		"SASL without TLS":            {kafka.Config{Brokers: at(append(known, kfake.TLS(brokerTLS))...), SASL: user}, "Config.TLS, which is not set: this port speaks TLS"},
		"TLS without SASL":            {kafka.Config{Brokers: at(append(known, kfake.TLS(brokerTLS))...), TLS: clientTLS}, "it may want Config.SASL"},
		"SASL is wanted":              {kafka.Config{Brokers: at(known...)}, "it may want Config.SASL"},
		"no client's certificate":     {kafka.Config{Brokers: at(kfake.TLS(mutual)), TLS: clientTLS}, "Config.TLS.Certificates"},
		"TLS at a plain port":         {kafka.Config{Brokers: at(), TLS: clientTLS}, "Config.TLS is set, and this port does not speak TLS"},
		"SASL at a port without":      {kafka.Config{Brokers: at(), SASL: user}, "Config.SASL is set, and this port takes no SASL"},
		"TLS and SASL, a plain port":  {kafka.Config{Brokers: at(known...), SASL: user, TLS: clientTLS}, "Config.TLS is set, and this port does not speak TLS"},
		"nothing listens":             {kafka.Config{Brokers: []string{listener.Addr().String()}}, "nothing listens there: look whether the broker runs"},
		"silence":                     {kafka.Config{Brokers: []string{silentBroker(t)}}, "accepts connections and keeps silent"},
		"silence, and TLS":            {kafka.Config{Brokers: []string{silentBroker(t)}, TLS: clientTLS}, "accepts connections and keeps silent"},
		"a host without a name":       {kafka.Config{Brokers: []string{"nowhere.invalid:9092"}}, "a host whose name is not known"},
		"one is refused, one silent":  {kafka.Config{Brokers: []string{listener.Addr().String(), silentBroker(t)}}, "nothing listens there"},
		"one is silent, one refused":  {kafka.Config{Brokers: []string{silentBroker(t), listener.Addr().String()}}, "keeps silent"},
		"the password is wrong":       {kafka.Config{Brokers: at(known...), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "user", Password: "wrong"}}, "Config.SASL.Password"},
		"the broker has no mechanism": {kafka.Config{Brokers: at(kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "hunter2")), SASL: user}, "Config.SASL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			require.ErrorContains(t, refusal(t, c.config), c.want)
			require.Less(t, time.Since(began), 7*time.Second)
		})
	}
}
