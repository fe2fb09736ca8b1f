package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/IBM/sarama"
)

// probe asks all brokers at once and returns when one of them lets us in, or with what is wrong with each. sarama's client,
// which asks only for the topics that it needs, would tell at the first publish, and waits for one broker after another.
func probe(ctx, life context.Context, config Config) error {
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
			if errs[i] = knock(address, config.clientConfig(trying)); errs[i] == nil {
				enough()
			}
		})
	}
	running.Wait()
	for i, err := range errs {
		if err == nil {
			return nil
		}
		if errors.Is(waiting.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %s: %w", dialTimeout, err)
		}
		errs[i] = fmt.Errorf("broker %s: %w", config.Brokers[i], config.explain(err))
	}
	return errors.Join(errors.Join(errs...), ctx.Err())
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

// explain adds what to look at to an error of connecting. Brokers often just hang up.
func (c Config) explain(err error) error {
	var (
		plain     tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
	)
	hangUp := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	var advice string
	switch {
	case errors.Is(err, sarama.ErrUnsupportedSASLMechanism):
		advice = fmt.Sprintf("Config.SASL.Mechanism is %s: the broker offers others", c.SASL.Mechanism)
	case c.SASL.Mechanism == sarama.SASLTypeOAuth && (errors.Is(err, sarama.ErrSASLAuthenticationFailed) || hangUp):
		advice = "look whether the broker takes what Config.SASL.Token returns"
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed), hangUp && c.SASL.Mechanism != "":
		advice = fmt.Sprintf("look at Config.SASL.User and Config.SASL.Password, whether the broker knows them for %s", c.SASL.Mechanism)
	case errors.As(err, &plain):
		advice = "Config.TLS is set, and this port does not speak TLS"
	case errors.As(err, &authority):
		advice = "Config.TLS.RootCAs lacks the authority of the broker's certificate"
	case errors.As(err, &host):
		advice = "Config.TLS.ServerName, or else the address in Config.Brokers, must be in the broker's certificate"
	case hangUp && c.TLS == nil:
		advice = "the broker hung up: it may want Config.TLS, or Config.SASL"
	case hangUp:
		advice = "the broker hung up: it may want Config.SASL, another certificate in Config.TLS, or no TLS at this port"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}
