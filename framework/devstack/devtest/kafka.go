package devtest

import (
	"context"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Kafka runs an Apache Kafka of the test's own, for what a shared one must not suffer, and stops it when the test ends. It
// takes about ten seconds. A failed test shows the end of its logs. The test is skipped, with the reason, where scripts/kafka
// has not been run; MILLRACE_REQUIRE_REAL=kafka makes that a failure.
func Kafka(t testing.TB, cfg devstack.KafkaConfig) *devstack.KafkaCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cluster, err := devstack.StartKafka(ctx, cfg)
	skipAbsent(t, err, string(devstack.Kafka))
	return owned(t, cluster, err)
}
