package dev

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processesEndIn is how long processes that a command has left may take to end by themselves.
const processesEndIn = 30 * time.Second

// process is a process of this machine. Name and group distinguish it from a later process with the same ID.
type process struct {
	id          int
	group, name string
}

// processesBelow returns the descendants of the process with this ID. It returns none on a machine without ps.
func processesBelow(id int) []process {
	running, parents := processes()
	return slices.DeleteFunc(running, func(p process) bool {
		at := parents[p.id]
		for at != id && at != 0 {
			at = parents[at]
		}
		return at != id
	})
}

// processes returns all running processes, and each one's parent ID.
func processes() (running []process, parents map[int]int) {
	parents = map[int]int{}
	out, _ := exec.Command("ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,comm=").Output() //nolint:noctx // it ends at once; on an error there is no list
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || strings.HasPrefix(fields[3], "Z") { // a zombie has ended
			continue
		}
		id, _ := strconv.Atoi(fields[0]) // ps prints numbers
		parents[id], _ = strconv.Atoi(fields[1])
		running = append(running, process{id, fields[2], strings.Join(fields[4:], " ")})
	}
	return running, parents
}

// signalAll ignores processes that have just ended.
func signalAll(all []process, signal os.Signal) {
	for _, p := range all {
		if p, err := os.FindProcess(p.id); err == nil {
			_ = p.Signal(signal)
		}
	}
}

// awaitEnd waits until none of the processes runs any more. It kills them if that takes too long, or on a further signal.
func awaitEnd(all []process, signals <-chan os.Signal) {
	tick, late := time.NewTicker(50*time.Millisecond), time.NewTimer(processesEndIn)
	defer tick.Stop()
	defer late.Stop()
	for {
		if all = stillRunning(all); len(all) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-signals:
			signalAll(all, syscall.SIGKILL)
		case <-late.C:
			signalAll(all, syscall.SIGKILL)
		}
	}
}

func stillRunning(all []process) []process {
	running, _ := processes()
	return slices.DeleteFunc(all, func(p process) bool { return !slices.Contains(running, p) })
}
