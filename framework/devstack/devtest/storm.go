package devtest

import "os"

// Storm returns how often a test repeats something: full if MILLRACE_TEST_STORMS is set, otherwise short. .ci/run runs the tests that
// call it both ways, short with the race detector and full without it. So call it in the test, not in a function that it calls. The short
// number is enough to show that the promise holds; the full one shows that it does not hold by chance.
func Storm(full, short int) int {
	if os.Getenv("MILLRACE_TEST_STORMS") != "" {
		return full
	}
	return short
}
