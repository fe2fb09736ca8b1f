package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
