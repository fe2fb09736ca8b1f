package devtest

import (
	"context"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Kafka runs an Apache Kafka for this test alone, for tests that would disturb a shared one, and stops it when the test ends. It takes
// about ten seconds. If the test fails, the end of its logs is shown. If scripts/kafka has not been run, the test is skipped with that
// reason; MILLRACE_REQUIRE_REAL=kafka makes that a failure.
func Kafka(t testing.TB, cfg devstack.KafkaConfig) *devstack.KafkaCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cluster, err := devstack.StartKafka(ctx, cfg)
	skipAbsent(t, err, string(devstack.Kafka))
	return owned(t, cluster, err)
}
