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

	// Wait is how long the suite waits for one message before it fails. Default: 15 s.
	Wait time.Duration
}

// Run runs the whole suite. Cases for features that the transport does not claim are skipped.
func Run(t *testing.T, factory Factory, config Config) {
	if config.Wait == 0 {
		config.Wait = 15 * time.Second
	}
	t.Run("Watermill", func(t *testing.T) { runWatermill(t, factory, config) })

	cases := []struct {
		name string
		run  func(*env)
	}{
		{"PublishBatchGivesEachMessageItsResult", batchResults},
		{"PublishBatchHoldsBackAfterAFailureOfTheKey", batchHoldsBack},
		{"PublishBatchStopsAtItsContext", batchContext},
		{"PublishRefusesWhatTheLimitsForbid", limits},
		{"PublisherCloseDoesNothing", publisherClose},
		{"MetadataRoundTrip", metadata},
		{"SubscribersOfOneConsumerShare", share},
		{"EachConsumerGetsEverything", consumers},
		{"TwoSubscriptionsOfOneSubscriber", subscribeTwice},
		{"ConcurrencyIsTheLimit", concurrency},
		{"MessagesAreNotShared", isolation},
		{"OrderPerKey", order},
		{"OrderPerKeySurvivesNacks", orderNacks},
		{"OtherKeysPassANackedOne", otherKeys},
		{"NackIsRedelivered", redelivery},
		{"RetryAfterIsHonoured", retryAfter},
		{"RetryAfterHoldsBackNoWorker", retryAfterWorker},
		{"CloseWaitsForHandlers", closeDrains},
		{"DrainTakesNothing", drainTakesNothing},
		{"ContextOutlivesTheSubscription", contextDrains},
		{"CloseReturnsWhatWasNotHandled", closeReturns},
		{"ClosedTransportRefuses", closedRefuses},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newEnv(t, factory, config))
		})
	}
}
