package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reference copies as franz-go's own documentation has it.
func reference(ctx context.Context, config copierConfig, p *pace) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(config.Brokers...),
		kgo.TransactionalID(fmt.Sprintf("%s-%d", config.Group, config.Number)),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(config.Group),
		kgo.ConsumeTopics(config.Input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
	}
	if config.Instance != "" {
		options = append(options, kgo.InstanceID(config.Instance))
	}
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		fetches := session.PollRecords(ctx, transactionSize)
		if ctx.Err() != nil {
			return nil
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			p.wait(ctx)
			session.Produce(ctx, &kgo.Record{Topic: config.Output, Key: record.Key, Value: record.Value}, promise.Promise())
		})
		// What was produced after a cancelled context failed, and its transaction is aborted.
		if _, err := session.End(context.WithoutCancel(ctx), promise.Err() == nil); err != nil {
			return err
		}
	}
}
