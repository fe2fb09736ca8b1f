package pgbinaries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

// Binaries are the programs of one PostgreSQL installation.
type Binaries struct {
	Bin     string
	Version string
	Source  string // for people
	As      *machine.Account
}

// Installed returns the PostgreSQL in the first of the folders that has one. If major is not "", it must be of that major version.
func Installed(ctx context.Context, major string, folders []string) (Binaries, error) {
	as, err := machine.Unprivileged()
	if err != nil {
		return Binaries{}, err
	}
	var reasons []error
	for _, bin := range folders {
		version, err := Version(ctx, bin, as)
		if err == nil && major != "" && !strings.HasPrefix(version, major+".") {
			err = fmt.Errorf("%s is PostgreSQL %s, not %s", bin, version, major)
		}
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		return Binaries{Bin: bin, Version: version, Source: fmt.Sprintf("PostgreSQL %s from %s", version, bin), As: as}, nil
	}
	return Binaries{}, machine.Absent("no usable initdb and postgres on the PATH or in /usr/lib/postgresql/*/bin: %w", errors.Join(reasons...))
}

// Folders returns where binaries may be, best first: the PATH's, then Debian's by descending version.
func Folders() []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// PostgreSQL finds its share folder relative to the real path of the binary.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is constant
	major := func(bin string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin))) // a folder without a number comes last
		return n
	}
	slices.SortFunc(debian, func(a, b string) int { return cmp.Compare(major(b), major(a)) })
	return append(folders, debian...)
}

// Version asks the binaries in bin for their version and checks that the account can run them.
func Version(ctx context.Context, bin string, as *machine.Account) (string, error) {
	for _, name := range []string{"initdb", "postgres"} {
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); err != nil {
			return "", err
		}
		if !as.Reaches(path) {
			return "", fmt.Errorf("user %s, whom root runs PostgreSQL as, cannot run %s", as.Name, path)
		}
	}
	output, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", filepath.Join(bin, "postgres"), err)
	}
	version := machine.FindVersion(string(output))
	if version == "" {
		return "", fmt.Errorf("%s --version says %q: no version", filepath.Join(bin, "postgres"), output)
	}
	return version, nil
}
