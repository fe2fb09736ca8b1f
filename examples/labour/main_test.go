package main

import (
	"io"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/stage/stagetest"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/docs"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

// In each case the one code loses or doubles, and the other does not, so the verdict of either can differ.
func TestEachFamilyIsToldOnce(t *testing.T) {
	t.Parallel()
	for broker, needs := range map[string][]devstack.Service{
		"memory": {devstack.Postgres},
		"pubsub": {devstack.Postgres, devstack.PubSub},
		"kafka":  {devstack.Postgres, devstack.Kafka},
	} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			code, out := stagetest.Command(t, needs, "-broker", broker)
			require.Zero(t, code, out)
			assert.Len(t, regexp.MustCompile(`outbox, claim and ledger: +told once`).FindAllString(out, -1), len(cases), out)
			assert.Contains(t, out, "each family was told once, whatever went wrong")
			for _, c := range cases {
				if broker == "kafka" && c.naive.guard == looksFirst {
					continue // the two may meet in one partition, one behind the other
				}
				assert.Regexp(t, c.naive.name+`: +of 6 notifications and texts: \d (lost|too many)`, out)
			}
		})
	}
}

func TestNaiveIsNoSuccess(t *testing.T) {
	t.Parallel()
	code, out := stagetest.Command(t, []devstack.Service{devstack.Postgres}, "-broker", "memory", "-naive")
	require.Equal(t, stage.Verdict, code, out)
	assert.Contains(t, out, "this is what happens without Millrace")
}

func TestComplete(t *testing.T) {
	t.Parallel()
	e, err := labour{id: 7, mother: "Ada", contractions: 3}.complete()
	require.NoError(t, err)
	assert.Equal(t, completed{LabourID: 7, Mother: "Ada", Contractions: 3}, e)
	_, err = labour{done: true}.complete()
	require.ErrorIs(t, err, errCompleted)
	_, err = labour{contractions: 3, open: 1}.complete()
	require.ErrorIs(t, err, errContraction)
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { command.Run(t.Context(), args, out, out) })
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	stagetest.Refused(t, command, map[string]string{
		"-broker rabbit":    `-broker is "rabbit": want pubsub, kafka or memory`,
		"-kills 1":          "this example kills nothing",
		"-broker kafka now": `unexpected argument "now"`,
	})
}
