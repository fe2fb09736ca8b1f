package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

// kafkaHome is a folder with the jars of Apache Kafka and everything else that its broker needs.
type kafkaHome struct {
	dir     string
	version string
}

func (home kafkaHome) path(name string) string { return filepath.Join(home.dir, name) }

// classPath is expanded by the JVM.
func (home kafkaHome) classPath() string { return home.path("*") }

const kafkaJar = "kafka_2.13-*.jar"

// kafkaVersionVariable chooses among the versions of Apache Kafka that scripts/kafka has fetched.
const kafkaVersionVariable = "MILLRACE_KAFKA_VERSION"

// findKafka returns the folder that MILLRACE_KAFKA_HOME names; it must hold the version of MILLRACE_KAFKA_VERSION, if that is set.
// Otherwise it returns the folder that scripts/kafka filled: for the version of MILLRACE_KAFKA_VERSION, or the newest if the variable is
// not set.
func findKafka() (kafkaHome, error) {
	if dir := os.Getenv("MILLRACE_KAFKA_HOME"); dir != "" {
		home, ok := openKafka(dir)
		if !ok {
			return home, fmt.Errorf("MILLRACE_KAFKA_HOME is %s, which holds no %s: scripts/kafka fills it", dir, kafkaJar)
		}
		if version := os.Getenv(kafkaVersionVariable); version != "" && version != home.version {
			return home, fmt.Errorf("%s is %s, and MILLRACE_KAFKA_HOME is %s, which holds %s: unset one of them",
				kafkaVersionVariable, version, dir, home.version)
		}
		return home, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return kafkaHome{}, machine.Absent("no folder for Apache Kafka: %w", err)
	}
	if version := os.Getenv(kafkaVersionVariable); version != "" {
		dir := filepath.Join(cache, "millrace", "kafka", version)
		home, ok := openKafka(dir)
		if !ok {
			return home, fmt.Errorf("%s is %s, and %s holds no %s: scripts/kafka, run with that variable, fetches it",
				kafkaVersionVariable, version, dir, kafkaJar)
		}
		return home, nil
	}
	pattern := filepath.Join(cache, "millrace", "kafka-*")
	var newest kafkaHome
	dirs, _ := filepath.Glob(pattern) // a bad pattern finds nothing
	for _, dir := range dirs {
		if home, ok := openKafka(dir); ok && machine.CompareVersions(home.version, newest.version) > 0 {
			newest = home
		}
	}
	if newest.dir == "" {
		return newest, machine.Absent("no Apache Kafka in %s", pattern)
	}
	return newest, nil
}

func openKafka(dir string) (kafkaHome, bool) {
	jars, _ := filepath.Glob(filepath.Join(dir, kafkaJar)) // a bad pattern finds nothing
	if len(jars) == 0 {
		return kafkaHome{}, false
	}
	name := filepath.Base(jars[len(jars)-1])
	return kafkaHome{dir: dir, version: strings.TrimSuffix(strings.TrimPrefix(name, "kafka_2.13-"), ".jar")}, true
}

// source returns a line for people.
func (home kafkaHome) source(brokers int) string {
	if brokers == 1 {
		return "Apache Kafka " + home.version
	}
	return fmt.Sprintf("Apache Kafka %s, %d brokers", home.version, brokers)
}
