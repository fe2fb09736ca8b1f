package role

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const wait = time.Minute

// The started processes are this test binary again.
func TestMain(m *testing.M) {
	if Name() == "" {
		goleak.VerifyTestMain(m)
		return
	}
	os.Exit(Play(play))
}

func play(ctx context.Context, config string, told <-chan string) error {
	fmt.Println(Name(), config)
	switch Name() {
	case "parent":
		if _, err := Start("child", config, os.Stdout, os.Stderr); err != nil {
			return err
		}
		select {}
	case "deaf":
		select {}
	case "failing":
		<-ctx.Done()
		return errors.New("on the way out")
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case line := <-told:
			fmt.Println("told", line)
		}
	}
}

// output is what processes write while a test reads it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return strings.Contains(o.buf.String(), text)
	}, wait, 5*time.Millisecond, text)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start("child", "blue", &out, io.Discard)
	require.NoError(t, err)
	out.await(t, "child blue\n")
	p.Tell("a thing")
	out.await(t, "told a thing\n")
	require.NoError(t, p.Err())
	require.NoError(t, p.Stop(wait))
	require.NoError(t, p.Err())
	assert.False(t, p.Kill())
}

func TestStopTellsOfErrors(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start("failing", "", io.Discard, &out)
	require.NoError(t, err)
	assert.ErrorContains(t, p.Stop(wait), "exit status 2")
	out.await(t, "failing: on the way out\n")
}

func TestKill(t *testing.T) {
	t.Parallel()
	p, err := Start("child", "", io.Discard, io.Discard)
	require.NoError(t, err)
	assert.True(t, p.Kill())
	assert.ErrorContains(t, p.Err(), "signal: killed")
	require.Error(t, p.Stop(wait))
}

func TestStopKillsTheDeaf(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start("deaf", "", &out, &out)
	require.NoError(t, err)
	out.await(t, "deaf")
	assert.ErrorContains(t, p.Stop(time.Millisecond), "was killed")
}

// A killed parent takes its children with it.
func TestNoneOutlivesItsParent(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	parent, err := Start("parent", "grey", write, write)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	reader := new(output)
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(reader, read) // ends with the last process that has it open
		ended <- err
	}()
	reader.await(t, "child grey\n")
	require.NoError(t, syscall.Kill(parent.PID(), syscall.SIGKILL))
	<-parent.Ended()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(wait):
		t.Fatal("the child runs still")
	}
}
