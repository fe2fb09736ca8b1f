package reach

import (
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/words"
)

// A shell takes an argument as it was, whoever made it up.
func TestQuoted(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{
		"e1", "it's", `say "it's"`, "$(reboot)", "a `b` c", `back\slash`, "two words", "nach\tTab", "line\nfeed 'and' quote", "\x1b[31mred", "ü€", "!!", "", "~", "*",
	} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+Quoted(arg)).Output()
		require.NoError(t, err, Quoted(arg))
		assert.Equal(t, arg, string(out), Quoted(arg))
		assert.Equal(t, Quoted(arg), words.OneLine(Quoted(arg)), "it can be printed")
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	r := Reach{DSN: "postgres://ada:hunter2@db/shop", Schema: "s"}
	assert.Equal(t, "millrace outbox discard --dsn postgres://ada:xxxxx@db/shop --schema s -- --all", r.Command("--all", "outbox", "discard"), "an ID is no flag")
	r.Server = &pgconn.Config{Host: "db", Port: 5432, User: "ada", Password: "hunter2", Database: "shop"}
	assert.Equal(t, `psql -h db -p 5432 -U ada -d shop -c "select 'x'"`, r.PSQL("", "select 'x'"))
	assert.Equal(t, `psql -h db -p 5432 -U ada -d other -c 'select 1'`, r.PSQL("other", "select 1"))
	assert.Equal(t, "millrace explain e1", Reach{}.Command("e1", "explain"))
	assert.Equal(t, "millrace dead replay --config my.yaml -- e1 --all", Reach{Config: "my.yaml"}.CommandOf([]string{"e1", "--all"}, "dead", "replay"))
	assert.Equal(t, "millrace doctor --config my.yaml", Reach{Config: "my.yaml"}.Command("", "doctor"))
	assert.Equal(t, "postgres://db:5432/shop", WithoutPassword("postgres://db:5432/shop"))
	for _, dsn := range []string{
		"host=db password=hunter2 user=ada", "host=db password='hunter2 \\' x' user=ada", "host=db user=ada password=p&hunter2 dbname=shop", `password=two\ hunter2 user=ada`, "user=ada password\v=\vhunter2 host=db",
		"host=db user=ada application_name=http://x password = a://hunter2", "postgres://db/shop?user=ada&password=hunter2", "postgres://db/shop?pass%77ord=hunter2&user=ada",
		"postgres://user=ada:hunter2?@db/shop", "postgres://user=ada:hunter2%@db/shop", "postgresql://user=ada:\nhunter2@db/shop?sslpassword=hunter2&sslmode=disable",
	} {
		shown := WithoutPassword(dsn)
		assert.NotContains(t, shown, "hunter2")
		assert.Contains(t, shown, "user=ada")
	}
}
