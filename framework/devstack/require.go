package devstack

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// requireVariable lists the services of which a fake is an error, so that a CI run cannot silently test less.
const requireVariable = "MILLRACE_REQUIRE_REAL"

// advice says how to get the real service.
var advice = map[Service]string{
	PubSub: "Install Google's emulator (Debian and Ubuntu packages google-cloud-cli-pubsub-emulator and default-jre-headless, " +
		"or \"gcloud components install pubsub-emulator\"), or name a running one by PUBSUB_EMULATOR_HOST.",
	Kafka:  kafkaAdvice,
	Kafka3: kafkaAdvice,
	Redis:  "Install redis-server (the Debian and Ubuntu package has that name), or name a running one by MILLRACE_REDIS_ADDR.",
}

const kafkaAdvice = "Run scripts/kafka, which fetches Apache Kafka with Maven (Debian packages maven and openjdk-17-jre-headless), " +
	"or name running brokers by MILLRACE_KAFKA_BROKERS."

// requisites are what the variable may name besides services: what some tests need of a machine.
var requisites = []string{"pgbouncer", "mount"}

// Required reports whether MILLRACE_REQUIRE_REAL names a service or requisite, so that its absence is an error.
func Required(name string) bool {
	for one := range strings.SplitSeq(os.Getenv(requireVariable), ",") {
		if strings.TrimSpace(one) == name {
			return true
		}
	}
	return false
}

// requiredReal reads the services of MILLRACE_REQUIRE_REAL.
func requiredReal() ([]Service, error) {
	var services []string
	for one := range strings.SplitSeq(os.Getenv(requireVariable), ",") {
		if !slices.Contains(requisites, strings.TrimSpace(one)) {
			services = append(services, one)
		}
	}
	parsed, err := ParseServices(strings.Join(services, ","))
	if err != nil {
		return nil, fmt.Errorf("%s: %w, %s", requireVariable, err, strings.Join(requisites, " or "))
	}
	if slices.Contains(parsed, Kafka) {
		parsed = append(parsed, Kafka3)
	}
	return parsed, nil
}
