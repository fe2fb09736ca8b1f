package dead

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
)

func TestStates(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"dead", "retrying", "blocked", "all"}, words.ClaimStates.Choice(failed))
	assert.Equal(t, "dead, retrying, blocked or all", words.Either(words.ClaimStates.Choice(failed)))
	assert.Equal(t, "one", words.Either([]string{"one"}))
	stored, err := cli.NamedStates("retrying", failed...)
	require.NoError(t, err)
	assert.Equal(t, []string{"retrying", "nacked"}, stored)
	_, err = cli.NamedStates("nacked", failed...)
	assert.EqualError(t, err, `--state is "nacked": want dead, retrying, blocked or all`, "the words of the tables are not those of people")
	for state, word := range words.ClaimStates {
		assert.Contains(t, []string{"dead", "retrying", "blocked"}, word, state)
	}
	total, order := words.ClaimStates.Count(map[string]int{"nacked": 1, "retrying": 2, "blocked": 3})
	assert.Equal(t, map[string]int{"retrying": 3, "blocked": 3}, total)
	assert.Equal(t, []string{"retrying", "blocked"}, order)
}
