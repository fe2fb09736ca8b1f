//go:build !linux

package main

import "time"

// preciseTimer is as precise as time.Sleep is on this system.
type preciseTimer struct{}

func newPreciseTimer() (preciseTimer, error) { return preciseTimer{}, nil }

func (preciseTimer) sleep(wait time.Duration) error {
	time.Sleep(wait)
	return nil
}

func (preciseTimer) close() {}
