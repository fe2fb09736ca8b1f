package devtest

import "os"

// Storm is how many of something a test makes: full where MILLRACE_TEST_STORMS is set, as .ci/run does, and else short. The
// short number is enough to show the promise; the full one shows that it is not by chance.
func Storm(full, short int) int {
	if os.Getenv("MILLRACE_TEST_STORMS") != "" {
		return full
	}
	return short
}
