package devstack

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/pgbinaries"
)

// The oldest and the newest major version of PostgreSQL that Millrace supports.
const (
	OldestPostgres = "15"
	NewestPostgres = "18"
)

// releaseVariable names the PostgreSQL major version for a stack, and for a server without a Release.
const releaseVariable = "MILLRACE_POSTGRES_VERSION"

// postgresRelease returns the major version to run: the caller's, otherwise the variable's, otherwise "" for any. It refuses a version
// that Millrace does not support, even if it is installed.
func postgresRelease(callers string) (string, error) {
	major := cmp.Or(callers, strings.TrimSpace(os.Getenv(releaseVariable)))
	if !pgbinaries.Supported(major) {
		return "", fmt.Errorf("no PostgreSQL %q: want %s to %s in ServerConfig.Release or %s", major, OldestPostgres, NewestPostgres, releaseVariable)
	}
	return major, nil
}
