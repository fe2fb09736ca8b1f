// Package transporttest is the conformance suite that every transport runs: Watermill's universal suite, and the
// promises of package transport that Watermill does not know.
package transporttest

import (
	"testing"
	"time"

	"github.com/millrace-go/millrace/transport"
)

// Factory returns a new transport. All transports of one factory are connected to the same broker, each with a lifetime
// of its own, as if they were processes. The factory closes them when t ends. Their drain timeout is at most 10 s,
// because Watermill's suite closes a subscriber while a message is unsettled and waits no longer.
type Factory func(t testing.TB) transport.Transport

// Config tells what the suite may expect.
type Config struct {
	// Short runs Watermill's suite with fewer messages and subscribers, for brokers that are slow. Default: false.
	Short bool

	// ExactlyOnce tells that the factory's transports use a broker's exactly-once delivery: Watermill's suite then takes
	// no message without a key twice. Default: false.
	ExactlyOnce bool

	// DeleteTopic deletes a topic at the broker, and what consumers had of it. Default: nil, topics do not disappear.
	DeleteTopic func(t testing.TB, topic string)

	// Cannot is what the transport can do and the tests' broker, a fake, cannot, each with the reason. Those cases are
	// left out, and the reasons are logged. Default: nothing.
	Cannot map[Ability]string

	// Wait is how long the suite waits for one message before it fails. Default: 15 s.
	Wait time.Duration
}

// Ability is something that a fake of a broker may be unable to do.
type Ability string

const (
	// CarryLargest is to take a message of Limits.MessageBytes.
	CarryLargest Ability = "carry a message of the largest size"
	// EndDeleted is to end the streams of subscriptions whose topic disappears.
	EndDeleted Ability = "end the streams of a topic that was deleted"
	// OrderExactlyOnce is order together with Config.ExactlyOnce.
	OrderExactlyOnce Ability = "keep order and deliver exactly once at the same time"
)

// unordered tells that order is left out.
func (c Config) unordered() bool { return c.ExactlyOnce && c.Cannot[OrderExactlyOnce] != "" }

// Run runs the whole suite. Cases for features that the transport does not claim are left out.
func Run(t *testing.T, factory Factory, config Config) {
	if config.Wait == 0 {
		config.Wait = 15 * time.Second
	}
	for ability, reason := range config.Cannot {
		t.Logf("left out, because this broker cannot %s: %s", ability, reason)
	}
	t.Run("Watermill", func(t *testing.T) { runWatermill(t, factory, config) })
	has := abilities(t, factory(t), config)
	for _, c := range cases {
		if !c.needs.in(has) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newEnv(t, factory, config))
		})
	}
}
