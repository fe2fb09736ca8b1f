package machine

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

// FindJava returns the path of a JVM: from JAVA_HOME, otherwise from the PATH. A JVM older than the release counts as absent.
func FindJava(ctx context.Context, release int) (string, error) {
	java := filepath.Join(os.Getenv("JAVA_HOME"), "bin", "java")
	if os.Getenv("JAVA_HOME") == "" {
		found, err := exec.LookPath("java")
		if err != nil {
			return "", Absent("no java on the PATH, and JAVA_HOME is not set")
		}
		java = found
	}
	output, err := exec.CommandContext(ctx, java, "-version").CombinedOutput() // java prints its version to standard error
	if err != nil {
		return "", Absent("%s -version: %w", java, err) // macOS has a java that only says where to get one
	}
	match := javaPattern.FindSubmatch(output)
	if match == nil {
		return "", Absent("%s -version names no version", java)
	}
	if found, _ := strconv.Atoi(string(match[1])); found < release { // the pattern matches digits only
		return "", Absent("%s is release %d, and %d or newer is needed", java, found, release)
	}
	return java, nil
}

// JavaMissing returns an error that names what needs Java.
func JavaMissing(what string, err error) error { return fmt.Errorf("%s needs Java: %w", what, err) }
