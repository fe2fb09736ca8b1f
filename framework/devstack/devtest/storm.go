package devtest

import "os"

// Storm returns how often a test repeats something: full if MILLRACE_TEST_STORMS is set, otherwise short. The short number is enough to
// show that the promise holds; the full one shows that it does not hold by chance. ".ci/run storms" finds the tests that call it, so call
// it in the test, not in a function that the test calls.
func Storm(full, short int) int {
	if os.Getenv("MILLRACE_TEST_STORMS") != "" {
		return full
	}
	return short
}
