package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// Disk is a small file system in memory, which a server can fill. Like a Stack, it leaves nothing behind.
type Disk struct {
	watchdog *watchdog.Watchdog
}

// StartDisk mounts a file system of the given size in megabytes. Its error wraps ErrAbsent if this process may not mount.
func StartDisk(ctx context.Context, megabytes int) (*Disk, error) {
	disk, err := startDisk(ctx, megabytes)
	if err != nil {
		return nil, fmt.Errorf("devstack: mount a file system: %w", err)
	}
	return disk, nil
}

func startDisk(ctx context.Context, megabytes int) (*Disk, error) {
	as, err := machine.Unprivileged()
	if err != nil {
		return nil, err
	}
	if as == nil {
		return nil, machine.Absent("the right to mount: this user is not root")
	}
	r, err := watchdog.NewRoom("disk", nil) // owned by root, because root mounts
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(r.Dir, 0o755), os.Mkdir(r.Path("disk"), 0o700)); err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	options := fmt.Sprintf("mode=0711,size=%dm,uid=%d,gid=%d", megabytes, as.UID, as.GID)
	w, err := watchdog.Watch(r, watchdog.Step{Signal: "TERM", Argv: []string{"/bin/sh", "-c", diskScript, r.Path("disk"), options}})
	if err != nil {
		return nil, err
	}
	disk := &Disk{watchdog: w}
	err = w.Await(ctx, func(context.Context) error {
		if !strings.Contains(r.Logged(), "mounted") {
			return errors.New("it is not mounted yet")
		}
		return nil
	})
	if err != nil {
		return nil, machine.Absent("the right to mount: %w", err)
	}
	if !as.Reaches(disk.Dir()) {
		return nil, errors.Join(machine.Absent("a temporary directory that user %s can reach", as.Name), disk.Stop())
	}
	return disk, nil
}

// diskScript keeps the file system mounted until it gets SIGTERM. It unmounts lazily, because a server that dies together with this
// process may still use it for a moment.
const diskScript = `
sleep 1000000 &
trap 'umount -l "$0"; kill "$!"; exit' TERM
mount -t tmpfs -o "$1" millrace "$0" && echo mounted || { kill "$!"; exit 1; }
wait`

// Dir is the file system's root, which servers may write to.
func (d *Disk) Dir() string { return d.watchdog.Room.Path("disk") }

// Fill takes all free space. A further call takes what has become free since.
func (d *Disk) Fill() error {
	file, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("devstack: fill %s: %w", d.Dir(), err)
		}
	}
	return nil
}

// Free releases the space that Fill took.
func (d *Disk) Free() error { return os.Remove(d.ballast()) }

// Stop unmounts the file system and waits until everything of it is gone. Call it once, after the processes that use it have ended.
func (d *Disk) Stop() error { return d.watchdog.Stop() }

func (d *Disk) ballast() string { return d.watchdog.Room.Path("disk", "ballast") }
