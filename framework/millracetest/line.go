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

// A stack is read to name the line of the handler: the caller's code that stands nearest to Millrace's call of the handler.

const (
	module = "github.com/millrace-go/millrace/"
	marker = module + "framework/millracetest.(*Process).observe." // the call of the handler
	once   = module + "middleware/effect."
)

// goroot is where the standard library's files are.
var goroot = func() string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(http.Get).Pointer()).FileLine(reflect.ValueOf(http.Get).Pointer())
	return strings.TrimSuffix(file, "net/http/client.go")
}()

// isCallers reports whether the function is of the caller's code: not of Millrace, of a driver, or of the standard library.
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

// here returns the line of the handler that the goroutine runs, and whether it runs in a call of the effect ledger.
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

// goroutine returns the number of the goroutine that calls it.
func goroutine() string {
	var buffer [64]byte
	words := bytes.Fields(buffer[:runtime.Stack(buffer[:], false)])
	return string(words[1])
}

// waiting returns the line of the handler that the goroutine of that number, or one that it started, waits in for PostgreSQL.
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

// lineOf reads a printed stack: a line with the function, then one with the file.
func lineOf(stack string) (line string) {
	lines := strings.Split(stack, "\n")
	handled := false // the handler has not returned yet
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
