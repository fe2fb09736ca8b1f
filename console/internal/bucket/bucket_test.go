package bucket_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/console/internal/bucket"
)

func TestTake(t *testing.T) {
	t.Parallel()
	b, now := bucket.New(3, time.Second), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 3 {
		assert.Zero(t, b.Take(now, "ada"))
	}
	assert.Equal(t, time.Second, b.Take(now, "ada"))
	assert.Equal(t, time.Second, b.Take(now, "ada"), "a refusal costs nothing")
	assert.Zero(t, b.Take(now, "grace"), "each has a bucket of his own")
	assert.Equal(t, 400*time.Millisecond, b.Take(now.Add(600*time.Millisecond), "ada"))
	assert.Zero(t, b.Take(now.Add(time.Second), "ada"))
	assert.Positive(t, b.Take(now.Add(time.Second), "ada"))
	for range 3 {
		assert.Zero(t, b.Take(now.Add(time.Hour), "ada"), "it is full again")
	}
	assert.Positive(t, b.Take(now.Add(time.Hour), "ada"))
	for i := range 20_000 {
		assert.Zero(t, b.Take(now.Add(2*time.Hour+time.Duration(i)*time.Minute), strconv.Itoa(i)))
	}
}
