package machine

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// Account is the user that a service runs as instead of root. A nil account is the current user.
type Account struct {
	Name     string
	UID, GID uint32
}

// Unprivileged returns the user for a service that refuses to run as root: "postgres", otherwise "nobody". It returns nil if the current
// user is not root.
func Unprivileged() (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &Account{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("root cannot run PostgreSQL, and there is neither a user %q nor %q to run it as", "postgres", "nobody")
}

// Own gives the files to the account.
func (a *Account) Own(paths ...string) error {
	if a == nil {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, int(a.UID), int(a.GID)); err != nil {
			return err
		}
	}
	return nil
}

// TempDir returns a temporary directory in which the account can create and remove folders.
func (a *Account) TempDir() (string, error) {
	if a == nil {
		return os.TempDir(), nil
	}
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o003 == 0o003 && a.Reaches(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("user %s can write neither to %s nor to /tmp or /var/tmp", a.Name, os.TempDir())
}

// Reaches reports whether everyone may enter each directory on the path and read the file. It is used only for files of other users, so
// owner and group do not matter.
func (a *Account) Reaches(path string) bool {
	if a == nil {
		return true
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}
