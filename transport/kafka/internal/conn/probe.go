package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
)

// probe asks all brokers at once and returns the first that lets us in, or what is wrong with each. sarama's client, which
// asks only for the topics that it needs, would tell at the first publish, and waits for one broker after another.
func probe(ctx, life context.Context, config Config) (address string, err error) {
	waiting, stop := context.WithTimeout(life, dialTimeout)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	// All connections end when the first broker has let us in.
	trying, enough := context.WithCancel(waiting)
	defer enough()
	errs := make([]error, len(config.Brokers))
	var running sync.WaitGroup
	for i, address := range config.Brokers {
		running.Go(func() {
			if errs[i] = config.try(trying, address); errs[i] == nil {
				enough()
			}
		})
	}
	running.Wait()
	for i, err := range errs {
		if err == nil {
			return config.Brokers[i], nil
		}
		errs[i] = fmt.Errorf("broker %s: %w", config.Brokers[i], err)
	}
	return "", errors.Join(errors.Join(errs...), ctx.Err())
}

// try tells whether the broker lets us in, or what is wrong, with the setting.
func (c Config) try(ctx context.Context, address string) error {
	early := c.lookLater(ctx, address)
	err := knock(address, c.clientConfig(ctx, ""))
	if noToken := (*tokenError)(nil); err == nil || errors.As(err, &noToken) { // which is no broker's error
		early.timer.Stop()
		return err
	}
	late := errors.Is(ctx.Err(), context.DeadlineExceeded) || isTimeout(err)
	found := early.result()
	if hungUp(err) {
		found = c.look(ctx, address)
	}
	err = c.explain(err, found)
	if late {
		err = fmt.Errorf("no answer within %s: %w", dialTimeout, err)
	}
	return err
}

// knock asks the broker for nothing, which it grants to whom it knows.
func knock(address string, config *sarama.Config) error {
	broker := sarama.NewBroker(address)
	if err := broker.Open(config); err != nil {
		return err
	}
	_, err := broker.Connected()
	if err != nil {
		return err
	}
	_, err = broker.DescribeConfigs(&sarama.DescribeConfigsRequest{Version: 1})
	_ = broker.Close()
	return err
}
