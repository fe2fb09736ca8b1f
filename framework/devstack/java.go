package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

var javaPattern = regexp.MustCompile(`version "([0-9]+)`)

// findJava returns the machine's JVM: JAVA_HOME's, else the PATH's. One older than the release is absent.
func findJava(ctx context.Context, release int) (string, error) {
	java := filepath.Join(os.Getenv("JAVA_HOME"), "bin", "java")
	if os.Getenv("JAVA_HOME") == "" {
		found, err := exec.LookPath("java")
		if err != nil {
			return "", absent("no java on the PATH, and JAVA_HOME is not set")
		}
		java = found
	}
	output, err := exec.CommandContext(ctx, java, "-version").CombinedOutput() // it prints to standard error
	if err != nil {
		return "", absent("%s -version: %w", java, err) // macOS has a java that only says where to get one
	}
	match := javaPattern.FindSubmatch(output)
	if match == nil {
		return "", absent("%s -version names no version", java)
	}
	if found, _ := strconv.Atoi(string(match[1])); found < release { // digits by the pattern
		return "", absent("%s is release %d, and %d or newer is needed", java, found, release)
	}
	return java, nil
}

// javaCommand starts a JVM that is quick to start and small. The second compiler is off: it would compete with the tests
// for the cores. Nothing is written outside the room.
func javaCommand(java string, r *room, args ...string) []string {
	return append([]string{
		java, "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-XX:ErrorFile=" + r.path("jvm-error.log"), "-Djava.io.tmpdir=" + r.dir, "-Djava.awt.headless=true",
	}, args...)
}

func javaMissing(what string, err error) error { return fmt.Errorf("%s needs Java: %w", what, err) }
