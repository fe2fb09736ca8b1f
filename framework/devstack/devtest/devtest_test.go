package devtest

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
)

func TestMain(m *testing.M) { Main(m) }

// Tests share what they start, and add what they lack.
func TestStartShares(t *testing.T) {
	dsn := Start(t, devstack.Postgres).PostgresDSN()
	stack := Start(t, devstack.Postgres, devstack.PubSub)
	assert.Equal(t, dsn, stack.PostgresDSN())
	assert.NotEmpty(t, stack.PubSubHost())
	assert.Same(t, stack, Start(t, devstack.PubSub))
}

// A schema holds one test's tables, and goes with all of them.
func TestSchema(t *testing.T) {
	pool := Pool(t)
	var schema string
	t.Run("is the test's own / and needs no quotes", func(t *testing.T) {
		schema = Schema(t)
		assert.Regexp(t, `^t_schema_is_the_test_s_own_[a-z0-9_]*_[a-z0-9]{12}$`, schema)
		assert.LessOrEqual(t, len(schema), 63)
		assert.NotEqual(t, schema, Schema(t))
		_, err := pool.Exec(t.Context(), "create table "+schema+".things (id int)")
		require.NoError(t, err)
	})
	var found int
	err := pool.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", schema).Scan(&found)
	require.NoError(t, err)
	assert.Zero(t, found)
}

func TestPool(t *testing.T) {
	config, err := pgx.ParseConfig(Start(t, devstack.Postgres).PostgresDSN())
	require.NoError(t, err)
	var database string
	require.NoError(t, Pool(t).QueryRow(t.Context(), "select current_database()").Scan(&database))
	assert.Equal(t, config.Database, database)
}

func TestNames(t *testing.T) {
	topics := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{2,248}$`) // what both brokers take
	projects := regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	for _, test := range []string{"x", "A long name, with / and Ünïcode_and much more of it than fits into any of the limits", "---", "0"} {
		t.Run(test, func(t *testing.T) {
			assert.Regexp(t, topics, Topic(t))
			assert.Regexp(t, projects, Project(t))
			assert.Regexp(t, `^t_[a-z0-9_]{1,61}$`, name(t, "t_", '_', 30))
			one, other := Topic(t), Topic(t)
			assert.NotEqual(t, one, other)
			assert.True(t, strings.HasPrefix(Topic(t), "t.names"))
		})
	}
}

// Main's exit code tells of a failed test, and of a goroutine that passing tests leave.
func TestRun(t *testing.T) {
	assert.Equal(t, 3, finish(func() int { return 3 }, func() error { return nil }))
	assert.Equal(t, 1, finish(func() int { return 0 }, func() error { return errors.New("left over") }))
	assert.Equal(t, 0, finish(func() int { return 0 }, func() error { return nil }))

	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	leak := func() int {
		go func() { <-release }()
		return 0
	}
	assert.Equal(t, 1, finish(leak, func() error { return nil }))
}

func TestRedis(t *testing.T) {
	for _, client := range []*redis.Client{Redis(t), RedisOn(t, RedisServer(t, devstack.RedisConfig{}).Address())} {
		key := Topic(t)
		require.NoError(t, client.Set(t.Context(), key, "value", time.Minute).Err())
		value, err := client.Get(t.Context(), key).Result()
		require.NoError(t, err)
		assert.Equal(t, "value", value)
	}
}

// What tests share is stopped at the end, all of it, whatever fails.
func TestEndings(t *testing.T) {
	var e endings
	stopped := 0
	for _, err := range []error{nil, errors.New("one"), errors.New("two")} {
		e.stops = append(e.stops, func() error { stopped++; return err })
	}
	require.EqualError(t, e.run(), "one\ntwo")
	assert.Equal(t, 3, stopped)
}
