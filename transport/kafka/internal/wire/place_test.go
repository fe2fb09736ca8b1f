package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/internal/placeid"
	"github.com/millrace-go/millrace/transport"
)

// Each Place has an ID of its own, which it has again after it was kept with a dead letter.
func TestForeignRecordPlaces(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	places := rapid.Custom(func(t *rapid.T) Place {
		return Place{
			rapid.SampledFrom([]string{"a", "b"}).Draw(t, "topic"), rapid.Int32Range(0, 2).Draw(t, "partition"), rapid.Int64Range(0, 3).Draw(t, "offset"),
			rapid.SampledFrom([]time.Time{{}, at, at.Add(time.Millisecond), time.UnixMilli(0)}).Draw(t, "timestamp"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		p, q := places.Draw(t, "p"), places.Draw(t, "q")
		for _, x := range []*Place{&p, &q} {
			if !placeid.Plausible(x.at) {
				x.at = time.Time{} // which nobody needs to keep
			}
		}
		require.Equal(t, p == q, p.eventID() == q.eventID())
		kept, err := placeIn(p.origin())
		require.NoError(t, err)
		require.Equal(t, p, kept)
	})
	for _, lost := range []transport.Origin{nil, {"topic": "a"}, {"topic": "a", "partition": "0"}, {"topic": "a", "partition": "0", "offset": "1", "timestamp": "now"}} {
		_, err := placeIn(lost)
		require.ErrorContains(t, err, "were not kept")
	}
}
