package pubsub

import (
	"log/slog"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/push"
	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// connection is what connecting needs.
func (c Config) connection() conn.Config {
	return conn.Config{ProjectID: c.ProjectID, Endpoint: c.Endpoint, CredentialsFile: c.CredentialsFile, Tracing: c.Tracing, Options: c.ClientOptions}
}

// setting is the topic as it is to be.
func (c TopicConfig) setting() setting.Topic {
	return setting.Topic{Labels: c.Labels, Retention: c.Retention, StorageRegions: c.StorageRegions, KMSKey: c.KMSKey}
}

// setting is the schema as it is to be.
func (c SchemaConfig) setting() setting.Schema {
	return setting.Schema{Name: c.Name, Binary: c.Encoding == Binary, FirstRevision: c.FirstRevision, LastRevision: c.LastRevision}
}

// resources is what becomes of topics and subscriptions.
func (c Config) resources(log *slog.Logger) resource.Config {
	schemas := make(map[string]setting.Schema, len(c.Schemas))
	for topic, s := range c.Schemas {
		schemas[topic] = s.setting()
	}
	return resource.Config{
		Project:       wire.Project(c.ProjectID),
		Topic:         c.Topic.setting(),
		Schemas:       schemas,
		Create:        c.Resources != CheckOnly,
		Update:        c.Resources == Update,
		Recheck:       c.Recheck,
		MeterProvider: c.MeterProvider,
		Log:           log,
	}
}

// resource is the consumer's subscription to the topic as it is to be.
func (c Config) resource(topic string, subscriber transport.SubscriberConfig) resource.Subscription {
	s := c.subscription(subscriber.Consumer)
	return resource.Subscription{Topic: topic, Consumer: subscriber.Consumer, Subscription: setting.Subscription{
		AckDeadline: s.AckDeadline,
		Ordered:     subscriber.Ordered,
		ExactlyOnce: s.ExactlyOnce,
		Filter:      s.Filter,
		Labels:      s.Labels,
		DeadLetters: s.DeadLetter.Topic,
		MaxAttempts: s.DeadLetter.MaxAttempts,
		RetryMin:    s.Retry.Min,
		RetryMax:    s.Retry.Max,
		Push:        s.Push.setting(),
	}}
}

// receiving is what the consumer's subscription to the topic needs.
func (c Config) receiving(topic string, subscriber transport.SubscriberConfig, log *slog.Logger) receive.Config {
	s := c.subscription(subscriber.Consumer)
	return receive.Config{
		Subscription:        c.resource(topic, subscriber),
		Project:             wire.Project(c.ProjectID),
		Name:                wire.Project(c.ProjectID).Subscription(topic, subscriber.Consumer),
		Concurrency:         subscriber.Concurrency,
		EventID:             s.EventID,
		Prefetch:            s.Prefetch,
		MaxOutstandingBytes: s.MaxOutstandingBytes,
		Streams:             s.Streams,
		Recheck:             c.Recheck,
		DrainTimeout:        c.DrainTimeout,
		TracerProvider:      c.TracerProvider,
		Propagator:          c.Propagator,
		Log:                 log,
	}
}

// pushed is what taking pushes needs.
func (c Config) pushed(log *slog.Logger) push.Config {
	all := c.pushes()
	config := push.Config{
		Project:  wire.Project(c.ProjectID),
		MaxBytes: c.MaxPushBytes,
		Consumer: func(consumer string) push.Consumer {
			s := c.subscription(consumer)
			return push.Consumer{Push: s.Push.setting(), AckDeadline: s.AckDeadline}
		},
		All:           make([]*setting.Push, len(all)),
		MeterProvider: c.MeterProvider,
		Log:           log,
	}
	for i, p := range all {
		config.All[i] = p.setting()
	}
	return config
}

func (p *Push) setting() *setting.Push {
	if p == nil {
		return nil
	}
	return &setting.Push{Endpoint: p.Endpoint, ServiceAccount: p.ServiceAccount, Audience: p.Audience, Unwrapped: p.Unwrapped}
}
