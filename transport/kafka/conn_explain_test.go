package kafka_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestConnectErrors: where several things are wrong, or brokers differ, what is told comes within seconds, too; TestWrongSettings has
// the settings that are wrong by themselves.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	_, clientTLS := certified()
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
		"TLS and SASL, a plain port": {kafka.Config{Brokers: at(known...), SASL: user, TLS: clientTLS}, "Config.TLS is set, and this port does not speak TLS"},
		"one is refused, one silent": {kafka.Config{Brokers: []string{listener.Addr().String(), silentBroker(t)}}, "nothing listens there"},
		"one is silent, one refused": {kafka.Config{Brokers: []string{silentBroker(t), listener.Addr().String()}}, "keeps silent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			require.ErrorContains(t, refusal(t, c.config), c.want)
			require.Less(t, time.Since(began), 20*time.Second)
		})
	}
}
