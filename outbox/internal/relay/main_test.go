package relay

import (
	"flag"
	"os"
	"testing"
)

// Every run tests the same worlds, unless -rapid.seed chooses others. Tests that fail on purpose leave no files.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.seed" })
	if !chosen {
		_ = flag.Set("rapid.seed", "1") // a number is always taken
	}
	_ = flag.Set("rapid.nofailfile", "true")
	os.Exit(m.Run())
}
