package devstack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
)

// childVariable makes this test binary a program that starts a stack and then ends in the named way.
const childVariable = "DEVSTACK_TEST_CHILD"

// child prints the stack's services as a line of JSON. Then it panics, or waits to be killed.
func child(ending string) {
	services, err := ParseServices(os.Getenv(childVariable + "_SERVICES"))
	if err != nil {
		panic(err)
	}
	stack, err := Start(context.Background(), services...)
	if err != nil {
		panic(err)
	}
	line, err := json.Marshal(stack.Services())
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
	if ending == "panic" {
		panic("as asked")
	}
	select {}
}

func startChild(t *testing.T, ending, services string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childVariable+"="+ending, childVariable+"_SERVICES="+services)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	return command, bufio.NewReader(output)
}

// However a process ends, nothing of its stack remains.
func TestDeath(t *testing.T) {
	for _, test := range []struct {
		name, services string
		signal         syscall.Signal
	}{
		{"panic", "postgres,pubsub", 0},
		{"interrupt", "postgres,pubsub", syscall.SIGINT},
		{"kill", "postgres,pubsub,kafka3,redis", syscall.SIGKILL},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := scratch(t)
			command, output := startChild(t, test.name, test.services)
			line, err := output.ReadBytes('\n')
			require.NoError(t, err)
			var infos []Info
			require.NoError(t, json.Unmarshal(line, &infos))
			require.Len(t, infos, strings.Count(test.services, ",")+1)
			if test.signal != 0 {
				require.NoError(t, command.Process.Signal(test.signal))
			}
			assert.Error(t, command.Wait())

			eventuallyNothing(t, dir)
			for _, info := range infos {
				for address := range strings.SplitSeq(info.Address, ",") {
					assert.True(t, closed(address), "%s still listens", info.Service)
				}
			}
		})
	}
}

// The same in the middle of a start, where the running command is initdb and not yet the service.
func TestDeathDuringStart(t *testing.T) {
	dir := scratch(t)
	command, _ := startChild(t, "kill", "postgres")
	require.Eventually(t, func() bool { return strings.Contains(strings.Join(leftover.In(t, dir), "\n"), "initdb") }, waitFor, tick)
	require.NoError(t, command.Process.Kill())
	assert.Error(t, command.Wait())
	eventuallyNothing(t, dir)
}
