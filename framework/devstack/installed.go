package devstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

// installedBinaries finds the PostgreSQL that this machine has installed, of the major version unless that is "".
func (h hooks) installedBinaries(ctx context.Context, major string) (binaries, error) {
	if h.skipInstalled {
		return binaries{}, machine.Absent("installed binaries are not wanted")
	}
	as, err := machine.Unprivileged()
	if err != nil {
		return binaries{}, err
	}
	folders := postgresFolders()
	if h.postgresBin != "" {
		folders = []string{h.postgresBin}
	}
	var reasons []error
	for _, bin := range folders {
		version, err := postgresVersion(ctx, bin, as)
		if err == nil && major != "" && !strings.HasPrefix(version, major+".") {
			err = fmt.Errorf("%s is PostgreSQL %s, not %s", bin, version, major)
		}
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		return binaries{bin: bin, version: version, source: fmt.Sprintf("PostgreSQL %s from %s", version, bin), as: as}, nil
	}
	return binaries{}, machine.Absent("no usable initdb and postgres on the PATH or in /usr/lib/postgresql/*/bin: %w", errors.Join(reasons...))
}

// postgresFolders lists where binaries may lie, best first: the PATH's, then Debian's by falling version.
func postgresFolders() []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// PostgreSQL finds its share folder relative to where the binary really is.
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

var versionPattern = regexp.MustCompile(`[0-9]+(\.[0-9]+)+`)

// postgresVersion asks the binaries in bin for their version, and checks that the account can run them.
func postgresVersion(ctx context.Context, bin string, as *machine.Account) (string, error) {
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
	version := versionPattern.FindString(string(output))
	if version == "" {
		return "", fmt.Errorf("%s --version says %q: no version", filepath.Join(bin, "postgres"), output)
	}
	return version, nil
}
