package devstack

import (
	"fmt"
	"os"
)

// requireVariable lists the services of which a fake is an error, so that a CI run cannot silently test less.
const requireVariable = "MILLRACE_REQUIRE_REAL"

// advice says how to get the real service.
var advice = map[Service]string{
	PubSub: "Install Google's emulator (Debian and Ubuntu packages google-cloud-cli-pubsub-emulator and default-jre-headless, " +
		"or \"gcloud components install pubsub-emulator\"), or name a running one by PUBSUB_EMULATOR_HOST.",
	Kafka: "Run scripts/kafka, which fetches Apache Kafka with Maven (Debian packages maven and openjdk-17-jre-headless), " +
		"or name running brokers by MILLRACE_KAFKA_BROKERS.",
}

// requiredReal reads MILLRACE_REQUIRE_REAL.
func requiredReal() ([]Service, error) {
	services, err := ParseServices(os.Getenv(requireVariable))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", requireVariable, err)
	}
	return services, nil
}
