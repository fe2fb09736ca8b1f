package pubsub_test

import (
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

func TestConfigValidate(t *testing.T) {
	valid := pubsub.Config{ProjectID: "p"}.WithDefaults()
	require.NoError(t, valid.Validate())
	require.Equal(t, 20*time.Second, valid.AckDeadline)
	require.Equal(t, 30*time.Second, valid.DrainTimeout)
	for name, spoil := range map[string]func(*pubsub.Config){
		"AckDeadline is 9s":    func(c *pubsub.Config) { c.AckDeadline = 9 * time.Second },
		"AckDeadline is 10m1s": func(c *pubsub.Config) { c.AckDeadline = 601 * time.Second },
		"AckDeadline is 10.5s": func(c *pubsub.Config) { c.AckDeadline = 10500 * time.Millisecond },
		"Prefetch is -1":       func(c *pubsub.Config) { c.Prefetch = -1 },
		"DrainTimeout is -1s":  func(c *pubsub.Config) { c.DrainTimeout = -time.Second },
	} {
		config := valid
		spoil(&config)
		require.ErrorContains(t, config.Validate(), name)
	}
	all := pubsub.Config{AckDeadline: 1, Prefetch: -1, DrainTimeout: -1}.Validate()
	for _, field := range []string{"ProjectID", "AckDeadline", "Prefetch", "DrainTimeout"} {
		require.ErrorContains(t, all, field)
	}
}
