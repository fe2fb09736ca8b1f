package self_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/internal/self"
)

func TestMain(m *testing.M) {
	if role.Name() != "" {
		os.Exit(role.Play(func(context.Context, string, <-chan string) error {
			fmt.Println(self.Name)
			return nil
		}))
	}
	os.Exit(m.Run())
}

// In two containers a process may have the same number and host.
func TestNamesDifferWhereHostAndNumberDoNot(t *testing.T) {
	t.Parallel()
	identity := func(name string) string {
		t.Helper()
		require.Regexp(t, `:\d+:[0-9a-f]{8}$`, name)
		return name[strings.LastIndex(name, ":"):]
	}
	var other strings.Builder
	p, err := role.Start("named", "", &other, t.Output())
	require.NoError(t, err)
	<-p.Ended()
	require.NoError(t, p.Err())
	assert.NotEqual(t, identity(self.Name), identity(strings.TrimSpace(other.String())))
}
