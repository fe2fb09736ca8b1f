package txn

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/transport/kafka/internal/ledger"
)

// A member that leaves the group while a rebalance gives it the next generation still has its partitions, so what it commits
// in the former generation is committed again, and not lost to another member.
func TestOutcomeOfALeavingMember(t *testing.T) {
	t.Parallel()
	leaving, leave := context.WithCancel(t.Context())
	leave()
	illegal := fmt.Errorf("commit the offsets: %w", sarama.ErrIllegalGeneration)
	in := func(session context.Context, generation int32) member {
		return member{session: session, id: "m", generation: generation}
	}
	for name, c := range map[string]struct {
		err     error
		by, now member
		want    ledger.Outcome
	}{
		"committed":                                {nil, in(leaving, 1), in(leaving, 1), ledger.Committed},
		"the group went on without it":             {illegal, in(leaving, 1), in(leaving, 1), ledger.Lost},
		"it has the next generation":               {illegal, in(leaving, 1), in(leaving, 2), ledger.Failed},
		"it does not leave, a rebalance is coming": {illegal, in(t.Context(), 1), in(t.Context(), 1), ledger.Failed},
		"the group does not know it":               {sarama.ErrUnknownMemberId, in(leaving, 1), in(leaving, 2), ledger.Lost},
		"another error":                            {errors.New("oops"), in(leaving, 1), in(leaving, 1), ledger.Failed},
	} {
		assert.Equal(t, c.want, outcomeOf(c.err, c.by, c.now), name)
	}
}
