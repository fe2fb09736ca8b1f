package budget

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A read asks for few rows until their size is known, and for no more than its bytes allow.
func TestRowsByTheirSize(t *testing.T) {
	t.Parallel()
	b := New()
	assert.Equal(t, firstRead, b.Rows(1000))
	assert.Zero(t, b.Each(firstRead), "not known")
	b.Sized(0)
	assert.Equal(t, firstSize, b.Size(), "nothing was learned")
	for range 100 {
		b.Sized(1000)
	}
	assert.InDelta(t, 1200, b.Size(), 10)
	assert.Equal(t, 1000, b.Rows(1000))
	assert.Equal(t, Most/1000, b.Each(1000))
	assert.Zero(t, b.Each(10_000), "a row may have twice its share")
	for range 100 {
		b.Sized(1 << 20)
	}
	assert.Equal(t, 15, b.Rows(1000))
	for range 100 {
		b.Sized(2 * Most)
	}
	assert.Equal(t, 1, b.Rows(1000))
}

// Reads that fail become smaller, those of a scan too.
func TestReadsThatFailBecomeSmaller(t *testing.T) {
	t.Parallel()
	b := New()
	b.Passed(100)
	assert.Equal(t, 200, b.Passes())
	b.Passed(1 << 30)
	assert.Equal(t, Most/bareSize, b.Passes())
	for range 20 {
		b.Failed()
	}
	assert.Equal(t, Least, b.Bytes())
	assert.Equal(t, Least/bareSize, b.Passes())
	b.OK()
	assert.Equal(t, 2*Least, b.Bytes())
	for range 20 {
		b.OK()
	}
	assert.Equal(t, Most, b.Bytes())
}
