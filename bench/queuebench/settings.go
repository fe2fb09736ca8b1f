package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// settings are what the harness says in the environment; see CONTRIBUTING_ADAPTERS.md there.
type settings struct {
	database string
	brokers  string // Kafka's addresses with commas between; "": the broker is in memory
	instance int    // the replica's number; 0 also reports what is not of one replica

	fixed       bool // PRODUCER_MODE: a rate, or a depth that is kept
	rate        int  // jobs a second
	rateFile    string
	targetDepth int64
	batch       int           // jobs in a transaction, at most
	every       time.Duration // between transactions
	payload     int           // bytes

	workers     int
	work        time.Duration
	sampleEvery time.Duration
}

func readSettings(get func(string) string) (s settings, err error) {
	var wrong []error
	number := func(name string, byDefault, least int) int {
		text := get(name)
		if text == "" {
			return byDefault
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			wrong = append(wrong, fmt.Errorf("%s is %q: want a number of at least %d", name, text, least))
		}
		return n
	}
	s = settings{
		database: get("DATABASE_URL"), brokers: get("MILLRACE_KAFKA_BROKERS"), instance: number("BENCH_INSTANCE_ID", 0, 0),
		rate: number("PRODUCER_RATE", 800, 0), rateFile: get("PRODUCER_RATE_CONTROL_FILE"), targetDepth: int64(number("TARGET_DEPTH", 1000, 1)),
		batch: number("PRODUCER_BATCH_MAX", 128, 1), every: time.Duration(number("PRODUCER_BATCH_MS", 10, 1)) * time.Millisecond,
		payload: number("JOB_PAYLOAD_BYTES", 256, 0),
		workers: number("WORKER_COUNT", 32, 1), work: time.Duration(number("JOB_WORK_MS", 1, 0)) * time.Millisecond,
		sampleEvery: time.Duration(number("SAMPLE_EVERY_S", 5, 1)) * time.Second,
	}
	switch mode := get("PRODUCER_MODE"); mode {
	case "", "fixed":
		s.fixed = true
	case "depth-target":
	default:
		wrong = append(wrong, fmt.Errorf("PRODUCER_MODE is %q: want fixed or depth-target", mode))
	}
	if scenario := get("SCENARIO"); scenario != "" && scenario != "long_horizon" {
		wrong = append(wrong, fmt.Errorf("SCENARIO is %q: want long_horizon", scenario))
	}
	if s.database == "" {
		wrong = append(wrong, errors.New("DATABASE_URL is not set: want the URL of the harness's database"))
	}
	return s, errors.Join(wrong...)
}

// currentRate is the rate that the harness's file names, which a phase changes, and otherwise that of the environment.
func (s settings) currentRate() float64 {
	if s.rateFile == "" {
		return float64(s.rate)
	}
	text, err := os.ReadFile(s.rateFile)
	if err != nil {
		return float64(s.rate)
	}
	rate, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil { // the file is being written
		return float64(s.rate)
	}
	return max(rate, 0)
}
