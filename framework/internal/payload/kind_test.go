package payload

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox"
)

// A protobuf message may have its version in the name of its package, or in its own name.
func TestKindOfMessage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"shop.v2.OrderPlaced": "shop.OrderPlaced 2", "v3.OrderPlaced": "OrderPlaced 3", "shop.v1beta1.OrderPlaced": "shop.v1beta1.OrderPlaced 1",
		"shop.OrderPlacedV2": "shop.OrderPlaced 2", "shop.OverIPV4": "shop.OverIPV4 1",
	} {
		k := kindOf(reflect.TypeFor[*struct{}](), name)
		assert.Equal(t, want, fmt.Sprint(k.Name, " ", k.Version))
	}
}

// A version above 999,999 was not read back from the type of a CloudEvent, so the event waited for ever.
func TestKindOfCloudEvent(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2, 20260101, MaxVersion} {
		for _, name := range []string{"OrderPlaced", "OrderPlaced.v3"} {
			want, metadata := Kind{Name: name, Version: version}, message.Metadata{}
			SetKind(metadata, want.CloudEvent())
			got, err := KindFrom(metadata)
			assert.NoError(t, err)
			assert.Equal(t, want, got)
		}
	}
}

// An event that waits for a new version of its consumer is retried soon at first, and every minute in the end.
func TestUpcastPatience(t *testing.T) {
	t.Parallel()
	id := outbox.NewID()
	for age, want := range map[time.Duration]time.Duration{0: time.Second, time.Minute: 30 * time.Second, time.Hour: time.Minute} {
		assert.InDelta(t, want, Patience(id, time.Now().Add(age)), float64(2*time.Second))
	}
	assert.Equal(t, time.Minute, Patience("no UUID", time.Now()))
}
