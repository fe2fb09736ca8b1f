package framework_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/framework"
)

// A service serves the catalog of what it publishes and handles. The catalog of its next version shows what breaks.
func TestCatalogOfAService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Admin.Address = "127.0.0.1:0"
	cfg.CloudEvents.Topics = map[string]framework.TopicCloudEvents{"orders": {Mode: cloudevent.Structured}}
	serve := func(configure func(*framework.Service)) *catalog.Document {
		svc := w.service(cfg)
		configure(svc)
		stop := w.start(svc)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+svc.AdminAddress()+"/catalog", http.NoBody)
		require.NoError(t, err)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode, string(text))
		stop()
		d, err := catalog.Parse(text)
		require.NoError(t, err)
		return d
	}
	second := framework.Topic[orderPlacedV2]("orders", framework.Upcast(1, 2, toCents))
	bill := func(context.Context, orderPlacedV2) error { return nil }
	before := serve(func(svc *framework.Service) {
		svc.Publishes(second, framework.Topic[*wrapperspb.Int64Value]("numbers"))
		require.NoError(t, framework.Handle(svc, "bill", second, bill))
		require.NoError(t, svc.AddHandler("audit", "orders", func(*message.Message) error { return nil }))
		require.NoError(t, framework.Schedule(svc, "nightly", "0 3 * * *", framework.Topic[time.Time]("days"), func(at time.Time) (string, time.Time) { return "", at }))
	})
	assert.Equal(t, "labour", before.Info.Title)
	assert.Equal(t, "structured", before.Channels["orders"].Mode)
	events := func(operation string) (names []string) {
		o, ok := before.Operations[operation]
		require.True(t, ok, operation)
		for _, m := range before.MessagesOf(o) {
			names = append(names, m.Name+" "+m.ContentType)
		}
		return names
	}
	assert.Equal(t, []string{"orderPlaced.v2 application/json"}, events("send.orders"))
	assert.Equal(t, []string{"google.protobuf.Int64Value.v1 application/protobuf"}, events("send.numbers"))
	assert.Equal(t, []string{"Time.v1 application/json"}, events("send.days"))
	assert.Equal(t, []string{"orderPlaced.v2 application/json", "orderPlaced.v1 application/json"}, events("receive.bill"))
	assert.Equal(t, []string{"any application/json"}, events("receive.audit"))

	after := serve(func(svc *framework.Service) {
		latest := framework.Topic[orderPlacedV3]("orders", framework.Upcast(2, 3, toCurrency))
		svc.Publishes(latest)
		require.NoError(t, framework.Handle(svc, "bill", latest, func(context.Context, orderPlacedV3) error { return nil }))
		require.NoError(t, svc.AddHandler("audit", "orders", func(*message.Message) error { return nil }))
	})
	breaks := map[string][]string{}
	billing := *before
	billing.Info.Title = "billing"
	for _, c := range catalog.Diff(before, after, &billing) {
		breaks[c.What] = c.Breaks
	}
	assert.Equal(t, map[string][]string{
		"Time.v1 is no longer published to days":                          {},
		"google.protobuf.Int64Value.v1 is no longer published to numbers": {},
		"orderPlaced.v2 is no longer published to orders":                 {"billing/bill"},
		"orderPlaced.v3 is published to orders":                           {"billing/bill"},
		"handler bill no longer handles orderPlaced.v1 of orders":         {"each producer of orders", "events that wait for bill"},
		"handler bill handles orderPlaced.v3 of orders":                   {},
	}, breaks)
}

// What is wrong with a topic is told.
func TestCatalogOfAWrongTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	svc.Publishes(framework.Topic[orderPlaced](""))
	_, err := svc.Catalog()
	assert.ErrorContains(t, err, "the topic is empty: want the name of one")
}
