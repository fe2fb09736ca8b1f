package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// machine is what figures depend on and no scenario tells.
type machine struct {
	cpu, memory, kernel, load string // "" where it is not known: what is not Linux
	revision                  string // of Millrace
}

// thisMachine asks Linux's files; load is that of the last minute, in which nothing else should have run.
func thisMachine(ctx context.Context) (m machine) {
	field := func(file, name string) string {
		content, _ := os.ReadFile(file) // not there but on Linux
		for line := range strings.Lines(string(content)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	m.cpu = field("/proc/cpuinfo", "model name")
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 64); err == nil {
		m.memory = fmt.Sprintf("%.1f GiB", kib/(1<<20))
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.kernel = strings.TrimSpace(string(release))
	load, _ := os.ReadFile("/proc/loadavg")
	m.load, _, _ = strings.Cut(string(load), " ")
	if _, m.revision = built(); m.revision == "" { // "go run" does not stamp it
		described, _ := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
		m.revision = strings.TrimSpace(string(described))
	}
	return m
}

// facts are lines of a table.
func (m machine) facts() [][2]string {
	known := [][2]string{{"system", runtime.GOOS + "/" + runtime.GOARCH}, {"processors", strconv.Itoa(runtime.NumCPU())}, {"Go", runtime.Version()}}
	for _, fact := range [][2]string{{"processor", m.cpu}, {"memory", m.memory}, {"kernel", m.kernel}, {"load before the first scenario", m.load}, {"revision of Millrace", m.revision}} {
		if fact[1] != "" {
			known = append(known, fact)
		}
	}
	return known
}
