package devstack

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// requireVariable lists the services for which a fake is an error, so that a CI run cannot silently test less.
const requireVariable = "MILLRACE_REQUIRE_REAL"

// needed maps the services and requisites to a description of how to install each.
var needed = map[string]string{
	string(Postgres): "an installed PostgreSQL: the Debian and Ubuntu package is postgresql",
	string(PubSub): "Google's Pub/Sub emulator: the Debian and Ubuntu packages are google-cloud-cli-pubsub-emulator and " +
		"default-jre-headless, or run \"gcloud components install pubsub-emulator\"",
	string(Kafka): "Apache Kafka: scripts/kafka fetches it with Maven (Debian and Ubuntu packages maven and openjdk-17-jre-headless)",
	string(Redis): "Redis: the Debian and Ubuntu package is redis-server",
	"pgbouncer":   "PgBouncer: the Debian and Ubuntu package is pgbouncer",
	"chromium":    "a browser: the Debian package is chromium",
	"debezium":    "Debezium: scripts/debezium fetches it with Maven (Debian and Ubuntu packages maven and openjdk-17-jre-headless)",
	"mount":       "the right to mount a file system: run as root",
}

// Need returns what a service or requisite of MILLRACE_REQUIRE_REAL is, and how to get it: "Redis: the Debian …".
func Need(name string) string {
	if name == string(Kafka3) {
		name = string(Kafka)
	}
	return needed[name]
}

// requisites are further values of the variable: programs and rights that some tests need.
var requisites = []string{"pgbouncer", "chromium", "debezium", "mount"}

// Required reports whether MILLRACE_REQUIRE_REAL names a service or requisite, so that its absence is an error.
func Required(name string) bool {
	for one := range strings.SplitSeq(os.Getenv(requireVariable), ",") {
		if strings.TrimSpace(one) == name {
			return true
		}
	}
	return false
}

// requiredReal returns the services in MILLRACE_REQUIRE_REAL.
func requiredReal() ([]Service, error) {
	var services []string
	for one := range strings.SplitSeq(os.Getenv(requireVariable), ",") {
		if !slices.Contains(requisites, strings.TrimSpace(one)) {
			services = append(services, one)
		}
	}
	parsed, err := ParseServices(strings.Join(services, ","))
	if err != nil {
		return nil, fmt.Errorf("%s: %w, %s", requireVariable, err, strings.Join(requisites[:len(requisites)-1], ", ")+" or "+requisites[len(requisites)-1])
	}
	if slices.Contains(parsed, Kafka) {
		parsed = append(parsed, Kafka3)
	}
	return parsed, nil
}
