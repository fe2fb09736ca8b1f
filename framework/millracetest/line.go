package millracetest

import (
	"bytes"
	"net/http"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// This file reads stacks to find the line of the handler: the caller's frame that is nearest to Millrace's call of the handler.

const (
	module = "github.com/millrace-go/millrace/"
	marker = module + "framework/millracetest.(*Process).observe." // the call of the handler
	once   = module + "middleware/effect."
)

// goroot is the folder of the standard library's files.
var goroot = func() string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(http.Get).Pointer()).FileLine(reflect.ValueOf(http.Get).Pointer())
	return strings.TrimSuffix(file, "net/http/client.go")
}()

// isCallers reports whether the function belongs to the caller: not to Millrace, a driver or the standard library.
func isCallers(function, file string) bool {
	if strings.HasPrefix(function, "github.com/jackc/") || strings.HasPrefix(function, "github.com/ThreeDotsLabs/watermill/") ||
		goroot != "" && strings.HasPrefix(file, goroot) {
		return false
	}
	within, ok := strings.CutPrefix(function, module)
	if !ok || strings.HasSuffix(file, "_test.go") {
		return true
	}
	for _, part := range []string{"framework", "middleware", "outbox", "pgtx", "retry", "transport", "internal"} {
		if strings.HasPrefix(within, part) {
			return false
		}
	}
	return true
}

func position(file string, line int) string { return filepath.Base(file) + ":" + strconv.Itoa(line) }

// here returns the handler's line in the current goroutine, and whether the ledger of effects made the call.
func here() (line string, ledger bool) {
	pcs := make([]uintptr, 200)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, marker) {
			break
		}
		ledger = ledger || strings.HasPrefix(f.Function, once)
		if isCallers(f.Function, f.File) {
			line = position(f.File, f.Line)
		}
		if !more {
			break
		}
	}
	return line, ledger
}

// goroutine returns the number of the current goroutine.
func goroutine() string {
	var buffer [64]byte
	words := bytes.Fields(buffer[:runtime.Stack(buffer[:], false)])
	return string(words[1])
}

// waiting returns the line where the handler waits for PostgreSQL, in the goroutine with this number or in one that it started.
func waiting(id string) string {
	buffer := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buffer, true)
		if n < len(buffer) {
			buffer = buffer[:n]
			break
		}
		buffer = make([]byte, 2*len(buffer))
	}
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		own := strings.HasPrefix(stack, "goroutine "+id+" ") || strings.Contains(stack, " in goroutine "+id+"\n")
		if own && strings.Contains(stack, "github.com/jackc/pgx/") {
			if line := lineOf(stack); line != "" {
				return line
			}
		}
	}
	return ""
}

// lineOf parses a printed stack: for each frame one line with the function, then one with the file.
func lineOf(stack string) (line string) {
	lines := strings.Split(stack, "\n")
	handled := false // the handler is on the stack
	for i := 1; i+1 < len(lines); i += 2 {
		function := strings.TrimPrefix(lines[i], "created by ")
		if strings.HasPrefix(function, marker) {
			handled = true
			break
		}
		file, rest, _ := strings.Cut(strings.TrimSpace(lines[i+1]), ".go:")
		number, _ := strconv.Atoi(strings.Fields(rest + " ")[0])
		if isCallers(function, file+".go") {
			line = position(file+".go", number)
		}
	}
	if !handled && !strings.Contains(stack, "\ncreated by ") {
		return ""
	}
	return line
}
