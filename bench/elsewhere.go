package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox"
)

const (
	// elsewhereCommand makes this program the producer of another process. Usage does not list it.
	elsewhereCommand = "produce-elsewhere"
	// elsewhereDSN names the server to it; an argument would stand in the list of processes.
	elsewhereDSN = "MILLRACE_BENCH_PRODUCER_DSN"
)

// produceElsewhere runs this program once more, as the producer. It tells the times of its commits through a pipe: a
// time in the payload would have to be taken before the commit.
func produceElsewhere(ctx context.Context, dsn, schema string, lasts time.Duration, committed *times) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, elsewhereCommand, "-schema", schema, "-for", lasts.String())
	cmd.Env = append(os.Environ(), elsewhereDSN+"="+dsn)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		id, at, _ := strings.Cut(lines.Text(), " ")
		nanos, parseErr := strconv.ParseInt(at, 10, 64)
		if parseErr != nil {
			err = fmt.Errorf("the producer says %q: want an ID and a time", lines.Text())
			break
		}
		committed.note(id, nanos)
	}
	_, drainErr := io.Copy(io.Discard, pipe) // whatever follows, so that it can end
	if err := errors.Join(err, lines.Err(), drainErr, cmd.Wait()); err != nil {
		return fmt.Errorf("producer: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// elsewhere is the producer's process: it commits at the pace, runs a notifier, and writes the ID and the time of each
// commit to out.
func elsewhere(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet(elsewhereCommand, flag.ContinueOnError)
	schema := flags.String("schema", "", "")
	lasts := flags.Duration("for", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pool, err := openPool(ctx, os.Getenv(elsewhereDSN), paceWorkers+1, 0) // one for the notifier
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: *schema})
	if err != nil {
		return err
	}
	notifier, err := outbox.NewNotifier(pool, outbox.NotifierConfig{Schema: *schema})
	if err != nil {
		return err
	}
	notifying, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = notifier.Run(notifying) }) // returns nil
	defer func() {
		stop()
		running.Wait()
	}()

	var mu sync.Mutex
	buffered := bufio.NewWriter(out)
	producer := withOutbox{pool, orders{*schema}, publisher, "pgtx.Run"}
	err = pace(ctx, *lasts, pacePerSecond, producer.commit, func(id string, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(buffered, "%s %d\n", id, at.UnixNano())
	})
	return errors.Join(err, buffered.Flush())
}
