package kafka_test

import (
	"encoding/base64"
	"net/url"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// A driver's configuration is where that of a file begins, and is not changed by it.
func TestDriverBeginsWithItsConfiguration(t *testing.T) {
	t.Parallel()
	driver := kafka.NewDriver(kafka.Config{Brokers: []string{"localhost"}, Producer: kafka.ProducerConfig{MaxMessageBytes: 5000}})
	s := driver.Settings()
	assert.Equal(t, "kafka", driver.Name)
	assert.Equal(t, 5000, s.Limits().MessageBytes)
	assert.EqualError(t, s.WithDefaults(transport.Environment{}).Validate(), `Config.Brokers has "localhost": want host:port, with a port from 1 to 65535`)
	broken, err := s.Open(t.Context(), transport.Environment{})
	assert.ErrorContains(t, err, "Config.Brokers")
	assert.Nil(t, broken)
}

// signedURL is what aws-msk-iam-sasl-signer-go signs with the credentials AKIDEXAMPLE and "secret".
const signedURL = "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&User-Agent=aws-msk-iam-sasl-signer-go%2F1.0.4%2Fgo1.26.8" +
	"&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261128%2Feu-central-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20261128T200317Z" +
	"&X-Amz-Expires=900&X-Amz-Signature=c6e26bee658e4680f19cb4ccfe1466e72d1de984afa521a196240751ec019f1d&X-Amz-SignedHeaders=host"

type signedToken struct{}

func (signedToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: base64.RawURLEncoding.EncodeToString([]byte(signedURL))}, nil
}

// TestDriverWithTokens: docs/how-to/msk-iam.md passes tokens to the driver in Go. They reach the brokers as they are, over TLS.
func TestDriverWithTokens(t *testing.T) {
	t.Parallel()
	brokerTLS, clientTLS := certified()
	cluster := bearing(t, func(token string) bool {
		signed, err := base64.RawURLEncoding.DecodeString(token)
		got, invalid := url.Parse(string(signed))
		return err == nil && invalid == nil && got.Query().Get("Action") == "kafka-cluster:Connect" && len(got.Query().Get("X-Amz-Signature")) == 64
	}, kfake.TLS(brokerTLS))
	driver := kafka.NewDriver(kafka.Config{
		Brokers: cluster.ListenAddrs(), TLS: clientTLS, SASL: kafka.SASL{Mechanism: sarama.SASLTypeOAuth, Token: signedToken{}},
	})
	tr, err := driver.Settings().WithDefaults(transport.Environment{}).Open(t.Context(), transport.Environment{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("topic", newMessage("k", "payload")))
}
