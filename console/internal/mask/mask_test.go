package mask

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestJSONInAString(t *testing.T) {
	t.Parallel()
	m := Mask{"card": true}
	for payload, want := range map[string]string{
		`{"body": "{\"card\": \"4111\"}", "id": 1}`:               `{"body": "••••••", "id": 1}`,
		`{"body": ["[{\"card\": 4111}]", "{\"id\": 1}", "card"]}`: `{"body": ["••••••", "{\"id\": 1}", "card"]}`,
		`"\"{\\\"card\\\": 4111}\""`:                              `"••••••"`,
	} {
		body := m.Body([]byte(payload), len(payload), true)
		assert.JSONEq(t, want, body.Text)
		_, why := m.Form([]byte(payload), len(payload), 10_000)
		assert.NotEmpty(t, why, "a form would show it")
	}
}
