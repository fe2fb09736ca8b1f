package watchdog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
)

// Room is the folder of one service: its data, its settings and its log. The watchdog removes it with the service. The log stays readable
// here after that, because this process keeps it open.
type Room struct {
	Dir     string
	log     *os.File
	account *machine.Account // the service runs as this user, who owns the folder; nil for the current user
}

// NewRoom makes the folder. Until a watchdog takes over the room, the caller must discard it. If the process is killed in between, an
// empty folder is left in the temporary directory.
func NewRoom(service string, as *machine.Account) (*Room, error) {
	base, err := as.TempDir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, "millrace-"+service+"-")
	if err != nil {
		return nil, err
	}
	r := &Room{Dir: dir, account: as}
	// O_APPEND, because several processes write to the file.
	r.log, err = os.OpenFile(r.Path("log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := as.Own(dir, r.Path("log")); err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	return r, nil
}

// Path returns the path of a file in the room.
func (r *Room) Path(elements ...string) string {
	return filepath.Join(append([]string{r.Dir}, elements...)...)
}

// Write creates a file in the room that only the service's user can read.
func (r *Room) Write(name, content string) error {
	if err := os.WriteFile(r.Path(name), []byte(content), 0o600); err != nil {
		return err
	}
	return r.account.Own(r.Path(name))
}

// Folder creates a folder in the room that only the service's user can enter.
func (r *Room) Folder(name string) error {
	if err := os.Mkdir(r.Path(name), 0o700); err != nil {
		return err
	}
	return r.account.Own(r.Path(name))
}

// Discard removes a room that no watchdog has taken over.
func (r *Room) Discard() error {
	return errors.Join(r.log.Close(), os.RemoveAll(r.Dir))
}

// environment is minimal, so that PGHOST, JAVA_TOOL_OPTIONS or a locale do not change what the service does.
func (r *Room) environment() []string {
	env := []string{"LC_ALL=C", "HOME=" + r.Dir, "TMPDIR=" + r.Dir}
	for _, key := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+value)
		}
	}
	return env
}

// Logged returns at most the last 16 KiB of the log.
func (r *Room) Logged() string {
	info, err := r.log.Stat()
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	size := min(info.Size(), 16<<10)
	content := make([]byte, size)
	n, _ := r.log.ReadAt(content, info.Size()-size) // on a short read, return what there is
	return string(content[:n])
}

// Tail returns the last 25 lines of the log.
func (r *Room) Tail() string {
	lines := strings.Split(strings.TrimSpace(r.Logged()), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// JavaCommand returns the command of a JVM that starts quickly and is small. The C2 compiler is off, because it would compete with the
// tests for the cores. The JVM writes nothing outside the room.
func JavaCommand(java string, r *Room, args ...string) []string {
	return append([]string{
		java, "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-XX:ErrorFile=" + r.Path("jvm-error.log"), "-Djava.io.tmpdir=" + r.Dir, "-Djava.awt.headless=true",
	}, args...)
}
