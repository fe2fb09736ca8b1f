package framework_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
)

// Two services with a handler of one name each get all events of a topic. With one group they share them.
func TestHandlersOfOneName(t *testing.T) {
	t.Parallel()
	const events = 20
	for _, broker := range []string{"pubsub", "kafka"} {
		for name, group := range map[string]string{"by default": "", "one group": "shared"} {
			t.Run(broker+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, broker)
				var got [2]atomic.Int64
				var services [2]*framework.Service
				for i, service := range []string{"labour", "billing"} {
					cfg := w.config()
					cfg.Service = service
					if group != "" {
						cfg.Handlers = map[string]framework.Handler{w.name("notify"): {Group: w.name(group)}}
					}
					services[i] = w.service(cfg)
					require.NoError(t, handle(services[i], w.name("notify"), w.topic("numbers"), func(context.Context, int) error {
						got[i].Add(1)
						return nil
					}))
				}
				w.start(services[0])
				w.start(services[1])
				for n := range events {
					require.NoError(t, services[0].Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
						return publish(ctx, w.topic("numbers"), strconv.Itoa(n), n)
					}))
				}
				if group == "" {
					w.eventually("all events in each service", func() bool { return got[0].Load() >= events && got[1].Load() >= events })
					return
				}
				w.eventually("all events in one service or the other", func() bool { return got[0].Load()+got[1].Load() >= events })
				assert.True(t, got[0].Load() < events || got[1].Load() < events)
			})
		}
	}
}
