package transporttest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// need is what a case cannot run without.
type need int

const (
	batch need = iota // a transport.BatchPublisher
	ordered
	delay
	size    // a limit of the message's size
	largest // and a broker that carries a message of it
	deletion
	deletedEnd // and streams that end with it
)

type needs []need

func (n needs) in(has map[need]bool) bool {
	return !slices.ContainsFunc(n, func(one need) bool { return !has[one] })
}

func abilities(t *testing.T, tr transport.Transport, config Config) map[need]bool {
	p, err := tr.Publisher()
	require.NoError(t, err)
	_, batches := p.(transport.BatchPublisher)
	f := tr.Features()
	return map[need]bool{
		batch:      batches,
		ordered:    f.Ordered && !config.unordered(),
		delay:      f.DelayedRedelivery,
		size:       f.Limits.MessageBytes > 0,
		largest:    f.Limits.MessageBytes > 0 && config.Cannot[CarryLargest] == "",
		deletion:   config.DeleteTopic != nil,
		deletedEnd: config.DeleteTopic != nil && config.Cannot[EndDeleted] == "",
	}
}

var cases = []struct {
	name  string
	needs needs
	run   func(*env)
}{
	{"PublishBatchGivesEachMessageItsResult", needs{batch, size}, batchResults},
	{"PublishBatchHoldsBackAfterAFailureOfTheKey", needs{batch, size}, batchHoldsBack},
	{"PublishBatchStopsAtItsContext", needs{batch}, batchContext},
	{"PublishRefusesWhatTheLimitsForbid", nil, limits},
	{"LargestMessage", needs{batch, largest}, largestMessage},
	{"PublisherCloseDoesNothing", nil, publisherClose},
	{"ManyTopicsAtOnce", nil, manyTopics},
	{"MetadataRoundTrip", nil, metadata},
	{"MalformedDataIsDelivered", nil, malformed},
	{"SubscribersOfOneConsumerShare", nil, share},
	{"EachConsumerGetsEverything", nil, consumers},
	{"TwoSubscriptionsOfOneSubscriber", nil, subscribeTwice},
	{"ConcurrencyIsTheLimit", nil, concurrency},
	{"MessagesAreNotShared", nil, isolation},
	{"OrderPerKey", needs{batch, ordered}, order},
	{"OrderPerKeySurvivesNacks", needs{ordered}, orderNacks},
	{"OrderAfterAFailureOfTheKey", needs{batch, ordered, size}, orderAfterFailure},
	{"OtherKeysPassANackedOne", needs{ordered, delay}, otherKeys},
	{"NackIsRedelivered", nil, redelivery},
	{"RetryAfterIsHonoured", needs{delay}, retryAfter},
	{"RetryAfterHoldsBackNoWorker", needs{delay}, retryAfterWorker},
	{"RejectIsADeadLetter", nil, reject},
	{"CloseWaitsForHandlers", nil, closeDrains},
	{"DrainTakesNothing", nil, drainTakesNothing},
	{"ContextOutlivesTheSubscription", nil, contextDrains},
	{"CloseReturnsWhatWasNotHandled", nil, closeReturns},
	{"ClosedTransportRefuses", nil, closedRefuses},
	{"PublisherOutlivesItsTopic", needs{deletion}, publisherOutlives},
	{"SubscriberOutlivesItsTopic", needs{deletedEnd}, subscriberOutlives},
}
