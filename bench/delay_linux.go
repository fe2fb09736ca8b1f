package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// preciseTimer sleeps to within some microseconds and without a thread: it is a timer of the kernel whose expiry wakes
// Go's poller. time.Sleep is no use for half a millisecond, because an idle process rounds it up to a whole one.
type preciseTimer struct{ file *os.File }

func newPreciseTimer() (preciseTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return preciseTimer{}, os.NewSyscallError("timerfd_create", err)
	}
	return preciseTimer{os.NewFile(uintptr(fd), "timerfd")}, nil
}

// sleep waits for that long; it must not be called concurrently.
func (t preciseTimer) sleep(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(wait.Nanoseconds())}, nil)
	}); err != nil {
		return err
	}
	if setErr != nil {
		return os.NewSyscallError("timerfd_settime", setErr)
	}
	var expirations [8]byte
	_, err = t.file.Read(expirations[:])
	return err
}

func (t preciseTimer) close() { t.file.Close() }
