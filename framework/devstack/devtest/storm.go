package devtest

import "os"

// Storm returns how often a test repeats something: full if MILLRACE_TEST_STORMS is set, as .ci/run does, otherwise short. The short
// number is enough to show that the promise holds; the full one shows that it does not hold by chance.
func Storm(full, short int) int {
	if os.Getenv("MILLRACE_TEST_STORMS") != "" {
		return full
	}
	return short
}
