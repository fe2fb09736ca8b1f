package pgschema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, want string
		ok         bool
	}{
		{"", "millrace", true},
		{"orders_2", "orders_2", true},
		{"_x", "_x", true},
		{strings.Repeat("a", 48), strings.Repeat("a", 48), true},
		{strings.Repeat("a", 49), "", false},
		{"Orders", "", false},
		{"2x", "", false},
		{"pg_x", "", false},
		{`a"b`, "", false},
		{"a b", "", false},
	} {
		got, err := pgschema.Validate(c.name)
		assert.Equal(t, c.want, got, c.name)
		assert.Equal(t, c.ok, err == nil, c.name)
	}
}
