package devstack

import (
	"cmp"
	"os"
	"strings"
)

// The oldest and the newest major version of PostgreSQL that Millrace supports.
const (
	OldestPostgres = "15"
	NewestPostgres = "18"
)

// releaseVariable names the major version of PostgreSQL that a stack and a server without a Release run.
const releaseVariable = "MILLRACE_POSTGRES_VERSION"

// postgresRelease is the major version to run: the caller's, else the variable's, else "", which is any.
func postgresRelease(callers string) string {
	return cmp.Or(callers, strings.TrimSpace(os.Getenv(releaseVariable)))
}
