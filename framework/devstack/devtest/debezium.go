package devtest

import (
	"context"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack"
)

// Debezium runs Kafka Connect with Debezium's connector for PostgreSQL and stops it when the test ends. It takes about ten seconds. If
// the test fails, the end of its log is shown. If scripts/debezium has not been run, the test is skipped with that reason;
// MILLRACE_REQUIRE_REAL=debezium makes that a failure.
func Debezium(t testing.TB, cfg devstack.DebeziumConfig) *devstack.Debezium {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	debezium, err := devstack.StartDebezium(ctx, cfg)
	skipAbsent(t, err, "debezium")
	return owned(t, debezium, err)
}
