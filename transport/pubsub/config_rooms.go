package pubsub

import (
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// connection is what connecting needs.
func (c Config) connection() conn.Config {
	return conn.Config{ProjectID: c.ProjectID, Endpoint: c.Endpoint, CredentialsFile: c.CredentialsFile, Tracing: c.Tracing, Options: c.ClientOptions}
}

// setting is the topic as it is to be.
func (c TopicConfig) setting() setting.Topic {
	return setting.Topic{Labels: c.Labels, Retention: c.Retention, StorageRegions: c.StorageRegions, KMSKey: c.KMSKey}
}

// setting is the subscription as it is to be. deadLetters is the full name of its dead-letter topic, or "".
func (c SubscriptionConfig) setting(ordered bool, deadLetters string) setting.Subscription {
	return setting.Subscription{
		AckDeadline: c.AckDeadline,
		Ordered:     ordered,
		ExactlyOnce: c.ExactlyOnce,
		Filter:      c.Filter,
		Labels:      c.Labels,
		DeadLetters: deadLetters,
		MaxAttempts: c.DeadLetter.MaxAttempts,
		RetryMin:    c.Retry.Min,
		RetryMax:    c.Retry.Max,
		Push:        c.Push.setting(),
	}
}

func (p *Push) setting() *setting.Push {
	if p == nil {
		return nil
	}
	return &setting.Push{Endpoint: p.Endpoint, ServiceAccount: p.ServiceAccount, Audience: p.Audience, Unwrapped: p.Unwrapped}
}
