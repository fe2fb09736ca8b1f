package millracetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The printed pattern runs exactly the test that failed. A pattern that matches nothing would pass.
func TestPatternMatchesItsTestAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"TestNotify", "TestNotify/a_family_of_(two)", "TestNotify/it's_1+1"} {
		assert.NotContains(t, pattern(name), "'", name)
		levels := strings.Split(pattern(name), "/")
		for i, level := range strings.Split(name, "/") {
			assert.Regexp(t, levels[i], level)
			assert.NotRegexp(t, levels[i], level+"Again")
		}
	}
}
