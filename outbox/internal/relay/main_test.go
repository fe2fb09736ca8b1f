package relay

import (
	"flag"
	"os"
	"testing"
)

// Tests that fail on purpose leave no files. A failure prints its seed.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
