package pubsub_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
)

// fault is what happens to the network while it is in use. It returns when the network is well again, if it ever is.
type fault struct {
	name   string
	strike func(*testing.T, *devtest.Proxy)
}

// pause lets a fault last.
func pause(t *testing.T, d time.Duration) {
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

var faults = []fault{
	{"resets", func(t *testing.T, p *devtest.Proxy) {
		for range 8 {
			pause(t, 250*time.Millisecond)
			p.Reset()
		}
	}},
	{"a black hole that ends", func(t *testing.T, p *devtest.Proxy) {
		p.Freeze()
		pause(t, 5*time.Second)
		p.Thaw()
	}},
	{"connections that a firewall forgot", func(_ *testing.T, p *devtest.Proxy) { p.Strand() }},
	{"latency", func(_ *testing.T, p *devtest.Proxy) { p.Delay(500 * time.Millisecond) }},
	{"a broker that is down", func(t *testing.T, p *devtest.Proxy) {
		p.Refuse()
		pause(t, 10*time.Second)
		require.NoError(t, p.Accept())
	}},
}

// network is a broker, and a way to it that has faults.
type network struct {
	proxy          *devtest.Proxy
	faulty, direct []option.ClientOption
	fake           *pstest.Server // nil for Google's emulator
}

// onFaultyNetworks runs test for each fault, before Google's emulator, or before its fake where there is no emulator: all at
// once, because they do little but wait. It leaves out what a broker cannot do.
func onFaultyNetworks(t *testing.T, faults []fault, test func(*testing.T, network, fault), unable ...string) {
	var running sync.WaitGroup
	defer running.Wait()
	broker := "emulator"
	if !devtest.IsReal(t, devstack.PubSub) {
		broker = "fake"
	}
	for _, f := range faults {
		name := f.name + "/" + broker
		if slices.Contains(unable, name) {
			continue
		}
		running.Go(func() {
			t.Run(name, func(t *testing.T) { test(t, newNetwork(t, broker), f) })
		})
	}
}

func newNetwork(t *testing.T, broker string) network {
	n := network{}
	var address string
	if broker == "emulator" {
		address = devtest.Real(t, devstack.PubSub).PubSubHost()
		n.direct = plain(address)
	} else {
		n.fake, n.direct = fake(t)
		address = n.fake.Addr
	}
	n.proxy = devtest.NewProxy(t, address)
	n.faulty = plain(n.proxy.Address())
	return n
}

// record is what a consumer did, as a claim would keep it: each event once, in the order of the first time.
type record struct {
	mu    sync.Mutex
	seen  map[string]int // by ID: how often it was delivered
	order map[string][]string
}

func newRecord() *record { return &record{seen: map[string]int{}, order: map[string][]string{}} }

func (r *record) note(msg *message.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[msg.UUID]++
	if r.seen[msg.UUID] == 1 {
		key := transport.Key(msg)
		r.order[key] = append(r.order[key], string(msg.Payload))
	}
}

func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// requireAll fails unless exactly these events were handled, those of a key in their order.
func (r *record) requireAll(t *testing.T, events []*message.Message) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	want := map[string][]string{}
	for _, msg := range events {
		require.Contains(t, r.seen, msg.UUID)
		want[transport.Key(msg)] = append(want[transport.Key(msg)], string(msg.Payload))
	}
	require.Len(t, r.seen, len(events), "events that nobody published")
	require.Equal(t, want, r.order)
}

// keyed returns events of so many keys, round and round.
func keyed(keys, perKey int) []*message.Message {
	events := make([]*message.Message, 0, keys*perKey)
	for i := range perKey {
		for k := range keys {
			events = append(events, newMessage(fmt.Sprint("key-", k), fmt.Sprintf("%04d", i)))
		}
	}
	return events
}
