package main

import (
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/stage/stagetest"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/docs"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

const good = "every booking was made, listed, counted and confirmed once"

// The same service on each broker; what differs is a line of millrace.yaml.
func TestEachBookingOnceUnderKills(t *testing.T) {
	t.Parallel()
	for _, broker := range []devstack.Service{devstack.Kafka, devstack.PubSub} {
		t.Run(string(broker), func(t *testing.T) {
			t.Parallel()
			code, out := stagetest.Command(t, []devstack.Service{devstack.Postgres, broker}, "-broker", string(broker), "-bookings", "300", "-kills", "5")
			require.Zero(t, code, out)
			assert.Contains(t, out, "  "+string(broker)+": ")
			assert.Equal(t, 300, stagetest.Number(t, out, "requests"))
			assert.Equal(t, 5, stagetest.Number(t, out, "kills"))
			assert.Positive(t, stagetest.Number(t, out, "keys used again"), "were refused")
			assert.Contains(t, out, good)
		})
	}
}

// The fleet goes to the other broker while guests book and instances are killed.
func TestMigrate(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for _, broker := range []string{"pubsub", "kafka"}[:devtest.Storm(2, 1)] {
		t.Run("from "+broker, func(t *testing.T) {
			t.Parallel()
			code, out := stagetest.Command(t, []devstack.Service{devstack.Postgres, devstack.Kafka, devstack.PubSub},
				"-broker", broker, "-migrate", "-bookings", "300", "-kills", "5")
			require.Zero(t, code, out)
			assert.Equal(t, 5, stagetest.Number(t, out, "kills"))
			for _, phase := range []string{"drain", "publish", "cut"} {
				assert.Contains(t, out, "phase "+phase)
			}
			assert.Regexp(t, `the other broker +reached`, out)
			assert.Contains(t, out, good)
		})
	}
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	code, out := stagetest.Command(t, []devstack.Service{devstack.Postgres}, "-broker", "memory", "-bookings", "200")
	require.Zero(t, code, out)
	assert.Contains(t, out, good)
}

// The verdict can fail: without a part, the same run shows what that part is for.
func TestWithoutPart(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for part, c := range map[string]struct{ broker, kills, wrong string }{
		"key":    {"memory", "0", `bookings +0 lost, [1-9]\d* too many`},
		"drain":  {"kafka", "2", `(?s)manifest entries +[1-9]\d* lost, 0 too many`},
		"id":     {"memory", "0", `(?s)manifest entries +0 lost, [1-9]\d* too many.*passengers +0 lost, [1-9]\d* too many.*e-mails +0 lost, 0 too many`},
		"ledger": {"pubsub", "8", `(?s)passengers +0 lost, 0 too many.*e-mails +0 lost, [1-9]\d* too many`},
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			needs := []devstack.Service{devstack.Postgres, devstack.PubSub}
			if c.broker == "kafka" {
				needs = append(needs, devstack.Kafka)
			}
			code, out := stagetest.Command(t, needs, "-broker", c.broker, "-bookings", "300", "-kills", c.kills, "-without", part, fmt.Sprintf("-migrate=%t", part == "drain"))
			require.Equal(t, stage.Verdict, code, out)
			assert.Regexp(t, c.wrong, out)
			assert.Contains(t, out, "this is what happens without the "+part)
		})
	}
}

// A client without an answer made no difference when what it asked for was there.
func TestWaitingClientsMakeTheVerdictBad(t *testing.T) {
	t.Parallel()
	assert.True(t, verdict{guests: &stage.Clients{}}.good())
	assert.False(t, verdict{guests: &stage.Clients{Waiting: 1}}.good())
	assert.False(t, verdict{guests: &stage.Clients{}, untrue: 1}.good())
	assert.False(t, verdict{guests: &stage.Clients{}, underway: true}.good())
}

// A connection string of keys and values got "?search_path=…" into its last value.
func TestWithSearchPath(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://h/x", "postgresql://h/x?sslmode=disable", "host=h dbname=x", "host=h password='a?b' dbname=x"} {
		cfg, err := pgx.ParseConfig(withSearchPath(dsn, "bookings_1"))
		require.NoError(t, err, dsn)
		assert.Equal(t, "h", cfg.Host, dsn)
		assert.Equal(t, "x", cfg.Database, dsn)
		assert.Equal(t, "bookings_1", cfg.RuntimeParams["search_path"], dsn)
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { command.Run(t.Context(), args, out, out) })
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	stagetest.Refused(t, command, map[string]string{
		"-bookings 0 -broker rabbit":     "-bookings is 0: want 1 to 1000000\n-broker is \"rabbit\": want pubsub, kafka or memory",
		"-without luck":                  "-without is \"luck\": want key, id, ledger or drain",
		"-without drain":                 "only a change of the broker has one; add -migrate",
		"-migrate -broker memory":        "want pubsub or kafka, which outlive a process",
		"-without ledger -broker memory": "nothing can be killed",
	})
}
