package output

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTerminal(t *testing.T) {
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer person.Close()
	fd := int(person.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: 72, Row: 24}))
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer terminal.Close()

	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	assert.Equal(t, Terminal{Width: 72, Colour: true}, Of(terminal))
	assert.Equal(t, "\x1b[31mdead\x1b[0m", Of(terminal).Red("dead"))
	t.Setenv("NO_COLOR", "1")
	assert.Equal(t, Terminal{Width: 72}, Of(terminal))
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	assert.Equal(t, Terminal{Width: 72, Dumb: true}, Of(terminal))
}
