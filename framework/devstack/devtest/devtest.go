// Package devtest gives tests the services of package devstack. Each test process has one stack, whose services start when the first test
// asks for them. Each test has its own schema, topic and project there, so that all tests can run in parallel. Services that the
// environment names are used and left running, so that "millrace dev -- go test ./..." runs every package on one stack.
package devtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/notrun"
)

// shared is the process's stack.
var shared devstack.Stack

// startTimeout bounds the first start of a service, which may include the download of PostgreSQL.
const startTimeout = 5 * time.Minute

// Start returns the process's stack, after starting the named services that it lacks. The stack is shared: a test must not stop it. Tests
// may call Start concurrently. It fails the test if a service cannot be started.
func Start(t testing.TB, services ...devstack.Service) *devstack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := shared.Add(ctx, services...); err != nil {
		t.Fatal(err)
	}
	return &shared
}

// IsReal is Start for a test that checks less if the service is a fake. For a fake, scripts/test reports that the test was not run in
// full.
func IsReal(t testing.TB, service devstack.Service) bool {
	t.Helper()
	info := described(t, service)
	if !info.Real {
		notrun.Note(t, devstack.Need(string(service)))
	}
	return info.Real
}

// Real is Start for a test that no fake of the service can pass. If there is only the fake, the test is skipped, and scripts/test reports
// that; MILLRACE_REQUIRE_REAL makes it a failure.
func Real(t testing.TB, service devstack.Service) *devstack.Stack {
	t.Helper()
	if info := described(t, service); !info.Real {
		notrun.Skip(t, devstack.Need(string(service)), fmt.Errorf("%s is %s", service, info.Source))
	}
	return &shared
}

func described(t testing.TB, service devstack.Service) (found devstack.Info) {
	t.Helper()
	for _, info := range Start(t, service).Services() {
		if info.Service == service {
			found = info
		}
	}
	return found
}

// Main is for a package's TestMain: it runs the tests, stops the process's stack, and exits. It fails if goroutines are left that opts do
// not permit, or if a service could not be stopped. Without Main the stack still ends with the process.
func Main(m *testing.M, opts ...goleak.Option) {
	flag.Parse()
	overlap()
	os.Exit(finish(m.Run, func() error { return errors.Join(atEnd.run(), shared.Stop()) }, opts...))
}

// AtEnd makes Main call stop after the last test and before it stops the stack. It is for what all tests of a package share. Tests may
// call it concurrently.
func AtEnd(stop func() error) {
	atEnd.Lock()
	defer atEnd.Unlock()
	atEnd.stops = append(atEnd.stops, stop)
}

var atEnd endings

type endings struct {
	sync.Mutex
	stops []func() error
}

func (e *endings) run() error {
	e.Lock()
	defer e.Unlock()
	var errs []error
	for _, stop := range e.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// AtOnce sets how many tests Main runs in parallel for each processor. Use fewer than two for tests that keep processors busy or have
// short timeouts. Use more for tests that mostly wait until the session or transaction of a dead process ends. Call it before Main.
func AtOnce(perProcessor float64) {
	n := int(math.Ceil(perProcessor * float64(runtime.GOMAXPROCS(0))))
	_ = flag.Set("test.parallel", strconv.Itoa(n)) // any number is valid; the command line is parsed later and overrides it
}

// overlap runs twice as many tests in parallel as there are processors, because most tests wait for a service. AtOnce and the flag
// -parallel override it.
func overlap() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		AtOnce(2)
	}
}

// leakPatience is how long goroutines may go on after the tests. pgx closes the connection of a canceled statement in a goroutine, which
// waits up to 15 s for a busy server.
const leakPatience = 16 * time.Second

// finish returns the exit code: that of the tests, or 1 for what they leave behind.
func finish(tests func() int, stop func() error, opts ...goleak.Option) int {
	opts = append(opts, goleak.IgnoreCurrent()) // OpenCensus, which Google's client imports, starts a goroutine in an init
	code := tests()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test leaves goroutines; reporting them would hide the failure
	}
	err := goleak.Find(opts...)
	for until := time.Now().Add(leakPatience); err != nil && time.Now().Before(until); {
		err = goleak.Find(opts...)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "goroutines are left after the tests: %v\n", err)
		return 1
	}
	return 0
}
