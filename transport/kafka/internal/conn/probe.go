package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
)

// probe connects to all brokers at once and returns the first that accepts the client. Its error says what is wrong with each. sarama's
// client loads only the topics that it needs, so it would fail at the first publish, and it tries one broker after another.
func probe(ctx, life context.Context, config Config) (address string, err error) {
	waiting, stop := context.WithTimeout(life, probeTimeout)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	// All connections end once the first broker has accepted the client.
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

// try checks whether the broker accepts the client. Its error names the setting that is wrong.
func (c Config) try(ctx context.Context, address string) error {
	early := c.lookLater(ctx, address)
	err := knock(address, c.clientConfig(ctx, ""))
	if noToken := (*tokenError)(nil); err == nil || errors.As(err, &noToken) { // it comes from the token endpoint, not from a broker
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
		err = fmt.Errorf("no answer within %s: %w", probeTimeout, err)
	}
	return err
}

// knock opens a connection and authenticates.
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
