package placeid_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/placeid"
)

// TestForeignRecordPlaceIDs: they must never change, because a redelivery would be another event.
func TestForeignRecordPlaceIDs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 0, 0, 1_999_999, time.UTC)
	got := placeid.Of("kafka:orders/3/17", at)
	assert.Equal(t, "019ca8d7-2d01-7656-ab9a-ecc8cc4fdf1c", got)
	id, err := uuid.Parse(got)
	require.NoError(t, err)
	assert.Equal(t, uuid.Version(7), id.Version())
	assert.Equal(t, uuid.RFC4122, id.Variant())
	assert.Equal(t, got, placeid.Of("kafka:orders/3/17", at.Truncate(time.Millisecond)), "milliseconds alone count")
	assert.NotEqual(t, got, placeid.Of("kafka:orders/3/17", at.Add(time.Millisecond)))
	assert.NotEqual(t, got, placeid.Of("kafka:orders/3/18", at))
	ms := at.UnixMilli()
	for _, implausible := range []time.Time{{}, time.UnixMilli(-1), time.UnixMilli(0), time.UnixMilli(ms / 1000), time.UnixMilli(ms * 1000), time.UnixMilli(ms * 1000 * 1000)} {
		assert.Equal(t, "kafka:orders/3/17", placeid.Of("kafka:orders/3/17", implausible))
	}
}
