package txn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// abortPatience is how long the end of an earlier transaction is waited for. It takes long when a partition of its outputs has
// lost its leader, for the coordinator has to write there that the transaction has ended.
const abortPatience = 3 * time.Second

// fence gives the producer an epoch: what is open of an earlier one is aborted, and what is still on its way is refused.
func (p *producer) fence(ctx context.Context) error {
	p.outlets.renew()
	if p.without&WithoutEpoch != 0 && p.identity != sequence.Nobody {
		return p.within(ctx, p.timeout, func(ctx context.Context) error { return p.end(ctx, false) })
	}
	err := p.within(ctx, min(abortPatience, p.timeout), func(ctx context.Context) error {
		if err := p.abort(ctx); err != nil {
			return err
		}
		return p.raise(ctx)
	})
	if errors.Is(err, sarama.ErrConcurrentTransactions) && ctx.Err() == nil {
		p.rename()
		err = p.within(ctx, p.timeout, p.raise)
	}
	return err
}

func (p *producer) within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx)
}

// abort ends the transaction that may be open. Asked for an epoch the coordinator would abort it, too, but in an epoch of its
// own choice, and our next question would look like that of a process that another one has replaced.
func (p *producer) abort(ctx context.Context) error {
	if p.identity == sequence.Nobody || p.begun.IsZero() {
		return nil
	}
	err := p.end(ctx, false)
	if superseded(err) && time.Since(p.begun) >= p.timeout { // aborted by the coordinator
		p.identity = sequence.Nobody
	}
	if superseded(err) || errors.Is(err, sarama.ErrInvalidTxnState) { // there is none
		p.begun = time.Time{}
		return nil
	}
	return err
}

// raise gets the next epoch, in which transactions are of the version that the brokers have now.
func (p *producer) raise(ctx context.Context) error {
	err := p.call(ctx, p.transactions, func() (sarama.KError, error) {
		v2, err := p.transactions.HasV2()
		if err != nil {
			return 0, err
		}
		next, code, err := p.transactions.InitProducerID(p.self(), p.timeout)
		if err == nil && code == sarama.ErrNoError {
			p.become(next)
			p.v2 = v2 && p.without&WithoutV2 == 0
		}
		return code, err
	})
	if superseded(err) {
		p.identity = sequence.Nobody // next time as a new one
	}
	if err != nil {
		return fmt.Errorf("get a producer epoch: %w", err)
	}
	return nil
}

// rename goes on under another transactional ID. The transaction under the old one has been told to end, and its end is
// written to the group's offsets, which tell the outcome, no later than to the partition that holds it up.
func (p *producer) rename() {
	p.renamed++
	p.id = fmt.Sprintf("%s-%d", p.base, p.renamed)
	p.identity = sequence.Nobody
	p.begun = time.Time{}
	p.transactions.Close()
	p.additions.Close()
}
