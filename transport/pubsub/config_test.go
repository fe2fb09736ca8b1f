package pubsub_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/pubsub"
)

func TestConfigProject(t *testing.T) {
	for _, c := range []struct {
		name, field, own, cloud, emulator, want string
	}{
		{"field", "field", "own", "cloud", "host:1", "field"},
		{"our variable", "", "own", "cloud", "host:1", "own"},
		{"Google's variable", "", "", "cloud", "host:1", "cloud"},
		{"emulator", "", "", "", "host:1", "millrace"},
		{"nothing", "", "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("PUBSUB_PROJECT_ID", c.own)
			t.Setenv("GOOGLE_CLOUD_PROJECT", c.cloud)
			t.Setenv("PUBSUB_EMULATOR_HOST", c.emulator)
			config := pubsub.Config{ProjectID: c.field}.WithDefaults()
			require.Equal(t, c.want, config.ProjectID)
			if c.want == "" {
				_, err := pubsub.New(t.Context(), pubsub.Config{})
				require.ErrorContains(t, err, "GOOGLE_CLOUD_PROJECT")
			}
		})
	}
}

func TestConfigDefaults(t *testing.T) {
	push := &pubsub.Push{Endpoint: "https://host/push", ServiceAccount: "a@b"}
	config := pubsub.Config{ProjectID: "p", Consumers: map[string]pubsub.SubscriptionConfig{
		"c": {DeadLetter: pubsub.DeadLetter{Topic: "dead"}, Retry: pubsub.Retry{Max: time.Minute}, Push: push},
	}}
	valid := config.WithDefaults()
	require.NoError(t, valid.Validate())
	require.Equal(t, pubsub.SubscriptionConfig{AckDeadline: 20 * time.Second, Prefetch: 500, MaxOutstandingBytes: 64 << 20, Streams: 1}, valid.Subscription)
	require.Equal(t, 30*time.Second, valid.DrainTimeout)
	require.Equal(t, pubsub.CreateMissing, valid.Resources)
	c := valid.Consumers["c"]
	require.Equal(t, 20*time.Second, c.AckDeadline)
	require.Equal(t, 10, c.DeadLetter.MaxAttempts)
	require.Equal(t, pubsub.Retry{Min: 10 * time.Second, Max: time.Minute}, c.Retry)
	require.Equal(t, "https://host/push", c.Push.Audience)

	require.Empty(t, push.Audience, "the caller's own")
	require.Zero(t, config.Consumers["c"].AckDeadline, "the caller's own")
	require.Equal(t, 600*time.Second, pubsub.SubscriptionConfig{Retry: pubsub.Retry{Min: 1}}.WithDefaults().Retry.Max)
}

func TestConfigValidate(t *testing.T) {
	valid := pubsub.Config{ProjectID: "p"}.WithDefaults()
	require.NoError(t, valid.Validate())
	for want, spoil := range map[string]func(*pubsub.Config){
		"DrainTimeout is -1s":                               func(c *pubsub.Config) { c.DrainTimeout = -time.Second },
		"Resources is Resources(":                           func(c *pubsub.Config) { c.Resources = 3 },
		`Config.Endpoint is "https://host": want host:port`: func(c *pubsub.Config) { c.Endpoint = "https://host" },
		`Config.Endpoint is "host": want host:port`:         func(c *pubsub.Config) { c.Endpoint = "host" },
		`Config.Endpoint is "x/y:443": want host:port`:      func(c *pubsub.Config) { c.Endpoint = "x/y:443" },
		`Config.Topic.Labels is "Team=x": "Team=x": want key=value of lower-case letters`: func(c *pubsub.Config) {
			c.Topic.Labels = pubsub.Labels{"Team": "x"}
		},
		"Config.Topic.Retention is 9m0s: want 10m0s to 744h0m0s": func(c *pubsub.Config) { c.Topic.Retention = 9 * time.Minute },
		`Config.Topic.StorageRegions[0] is "Europe": want a region`: func(c *pubsub.Config) {
			c.Topic.StorageRegions = []string{"Europe"}
		},
		`Config.Topic.KMSKey is "key": want projects/`: func(c *pubsub.Config) { c.Topic.KMSKey = "key" },
		`Config.Schemas["a/b"] is of no topic`:         func(c *pubsub.Config) { c.Schemas = map[string]pubsub.SchemaConfig{"a/b": {Name: "labour"}} },
		`Config.Schemas["labour.completed"].Name is "": want the ID of a schema, or projects/`: func(c *pubsub.Config) {
			c.Schemas = map[string]pubsub.SchemaConfig{"labour.completed": {}}
		},
		`.Encoding is Encoding(2): want JSON or Binary`: func(c *pubsub.Config) {
			c.Schemas = map[string]pubsub.SchemaConfig{"labour.completed": {Name: "projects/p/schemas/labour", Encoding: 2}}
		},
		`.LastRevision is "1": want the ID of a revision, 8 hexadecimal digits`: func(c *pubsub.Config) {
			c.Schemas = map[string]pubsub.SchemaConfig{"labour.completed": {Name: "labour", LastRevision: "1"}}
		},
		`Config.Consumers["a.b"] is of no consumer: want 1 to 100 letters`: func(c *pubsub.Config) {
			c.Consumers = map[string]pubsub.SubscriptionConfig{"a.b": pubsub.SubscriptionConfig{}.WithDefaults()}
		},
		`Config.Consumers["100%d"].Prefetch is -1: want 1`: func(c *pubsub.Config) {
			c.Consumers = map[string]pubsub.SubscriptionConfig{"100%d": {Prefetch: -1}}
		},
	} {
		config := valid
		spoil(&config)
		require.ErrorContains(t, config.Validate(), want)
	}

	push := func(spoil func(*pubsub.Push)) func(*pubsub.SubscriptionConfig) {
		return func(c *pubsub.SubscriptionConfig) {
			c.Push = &pubsub.Push{Endpoint: "https://host/path", ServiceAccount: "a@b"}
			spoil(c.Push)
		}
	}
	for _, spoilt := range []struct {
		want  string // "" for what is valid
		spoil func(*pubsub.SubscriptionConfig)
	}{
		{"AckDeadline is 9s", func(c *pubsub.SubscriptionConfig) { c.AckDeadline = 9 * time.Second }},
		{"AckDeadline is 10m1s", func(c *pubsub.SubscriptionConfig) { c.AckDeadline = 601 * time.Second }},
		{"AckDeadline is 10.5s", func(c *pubsub.SubscriptionConfig) { c.AckDeadline = 10500 * time.Millisecond }},
		{"Prefetch is -1", func(c *pubsub.SubscriptionConfig) { c.Prefetch = -1 }},
		{"MaxOutstandingBytes is 9999999: want 10000000 or more", func(c *pubsub.SubscriptionConfig) { c.MaxOutstandingBytes = 9_999_999 }},
		{"Streams is -1: want 1 to 100", func(c *pubsub.SubscriptionConfig) { c.Streams = -1 }},
		{"Streams is 101", func(c *pubsub.SubscriptionConfig) { c.Streams = 101 }},
		{`Labels is "a=B"`, func(c *pubsub.SubscriptionConfig) { c.Labels = pubsub.Labels{"a": "B"} }},
		{"", func(c *pubsub.SubscriptionConfig) { c.Labels = pubsub.Labels{"a": ""} }},
		{"Filter is 257 bytes long", func(c *pubsub.SubscriptionConfig) { c.Filter = strings.Repeat("x", 257) }},
		{"DeadLetter.MaxAttempts is 4: want 5 to 100", func(c *pubsub.SubscriptionConfig) { c.DeadLetter = pubsub.DeadLetter{Topic: "dead", MaxAttempts: 4} }},
		{"DeadLetter.MaxAttempts is 101", func(c *pubsub.SubscriptionConfig) { c.DeadLetter = pubsub.DeadLetter{Topic: "dead", MaxAttempts: 101} }},
		{"DeadLetter.MaxAttempts is 5 without", func(c *pubsub.SubscriptionConfig) { c.DeadLetter.MaxAttempts = 5 }},
		{`DeadLetter.Topic is "a/b"`, func(c *pubsub.SubscriptionConfig) { c.DeadLetter = pubsub.DeadLetter{Topic: "a/b", MaxAttempts: 5} }},
		{"", func(c *pubsub.SubscriptionConfig) { c.DeadLetter = pubsub.DeadLetter{Topic: "dead", MaxAttempts: 5} }},
		{"Retry.Min is -1s", func(c *pubsub.SubscriptionConfig) { c.Retry.Min = -time.Second }},
		{"Retry.Min is 10m1s", func(c *pubsub.SubscriptionConfig) {
			c.Retry = pubsub.Retry{Min: 601 * time.Second, Max: 601 * time.Second}
		}},
		{"Retry.Max is 1s: want 2s", func(c *pubsub.SubscriptionConfig) { c.Retry = pubsub.Retry{Min: 2 * time.Second, Max: time.Second} }},
		{"", func(c *pubsub.SubscriptionConfig) { c.Retry = pubsub.Retry{Min: time.Second, Max: time.Second} }},
		{"", push(func(*pubsub.Push) {})},
		{`Push.Endpoint is "host/path": want an absolute URL`, push(func(p *pubsub.Push) { p.Endpoint = "host/path" })},
		{`Push.Endpoint is "ftp://host"`, push(func(p *pubsub.Push) { p.Endpoint = "ftp://host" })},
		{"want https", push(func(p *pubsub.Push) { p.Endpoint = "http://host" })},
		{"", push(func(p *pubsub.Push) { *p = pubsub.Push{Endpoint: "http://host/push", AllowUnauthenticated: true} })},
		{`Push.Endpoint is "https://host", without a path: want one, such as /push, or Path`, push(func(p *pubsub.Push) { p.Endpoint = "https://host" })},
		{"", push(func(p *pubsub.Push) { p.Endpoint, p.Path = "https://host", "/" })},
		{"", push(func(p *pubsub.Push) { p.Path = "/a/b" })},
		{`Push.Path is "a"`, push(func(p *pubsub.Push) { p.Path = "a" })},
		{`Push.Path is "/a/"`, push(func(p *pubsub.Push) { p.Path = "/a/" })},
		{`Push.Path is "/a//b": want a path without "//", "." and "..", which no route has: "/a/b"`, push(func(p *pubsub.Push) { p.Path = "/a//b" })},
		{`Push.Path is "/a/../b"`, push(func(p *pubsub.Push) { p.Path = "/a/../b" })},
		{`Push.Endpoint is "https://host//b": want a path without "//", "." and "..", which no route has: "/b"; or Path`, push(func(p *pubsub.Push) { p.Endpoint = "https://host//b" })},
		{`Push.Endpoint is "https://host/a/%2e%2e/b": want a path without`, push(func(p *pubsub.Push) { p.Endpoint = "https://host/a/%2e%2e/b" })},
		{"", push(func(p *pubsub.Push) { p.Endpoint, p.Path = "https://host//b", "/b" })},
		{"no user, query", push(func(p *pubsub.Push) { p.Endpoint += "/" })},
		{"no user, query", push(func(p *pubsub.Push) { p.Endpoint += "?a=b" })},
		{"Push.ServiceAccount is empty", push(func(p *pubsub.Push) { p.ServiceAccount = "" })},
		{`Push.ServiceAccount is "a"`, push(func(p *pubsub.Push) { p.ServiceAccount = "a" })},
		{"ExactlyOnce is true with Push", func(c *pubsub.SubscriptionConfig) {
			push(func(*pubsub.Push) {})(c)
			c.ExactlyOnce = true
		}},
	} {
		s := pubsub.SubscriptionConfig{}.WithDefaults()
		spoilt.spoil(&s)
		for path, config := range map[string]pubsub.Config{
			"Config.Subscription":   {Subscription: s},
			`Config.Consumers["x"]`: {Subscription: valid.Subscription, Consumers: map[string]pubsub.SubscriptionConfig{"x": s}},
		} {
			config.ProjectID = "p"
			err := config.Validate()
			if spoilt.want == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, path+".")
			require.ErrorContains(t, err, spoilt.want)
		}
	}

	all := pubsub.Config{Subscription: pubsub.SubscriptionConfig{AckDeadline: 1, Prefetch: -1}, DrainTimeout: -1}.Validate()
	for _, field := range []string{"ProjectID", "AckDeadline", "Prefetch", "DrainTimeout"} {
		require.ErrorContains(t, all, field)
	}
}

func TestMaxPushBytes(t *testing.T) {
	t.Parallel()
	config := pubsub.Config{ProjectID: "p", MaxPushBytes: 16<<20 - 1}.WithDefaults()
	require.ErrorContains(t, config.Validate(), "Config.MaxPushBytes is 16777215: want 16777216 or more")
	config.MaxPushBytes = 16 << 20
	require.NoError(t, config.Validate())
	require.Equal(t, 64<<20, pubsub.Config{}.WithDefaults().MaxPushBytes)
}
