package snapshot_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/snapshot"
)

func TestShows(t *testing.T) {
	t.Parallel()
	const epoch = 3 << 32
	for name, test := range map[string]struct {
		s           snapshot.Snapshot
		transaction uint32
		shows       bool
	}{
		"older than all that run":      {snapshot.Snapshot{Oldest: 10, Next: 20, Running: []uint64{10, 15}}, 9, true},
		"ended beside others that run": {snapshot.Snapshot{Oldest: 10, Next: 20, Running: []uint64{10, 15}}, 12, true},
		"runs":                         {snapshot.Snapshot{Oldest: 10, Next: 20, Running: []uint64{10, 15}}, 15, false},
		"not begun":                    {snapshot.Snapshot{Oldest: 10, Next: 20}, 20, false},
		"the zero snapshot":            {snapshot.Snapshot{}, 5, false},
		"in a later epoch":             {snapshot.Snapshot{Oldest: epoch + 5, Next: epoch + 20}, 19, true},
		"runs since the last epoch":    {snapshot.Snapshot{Oldest: epoch - 3, Next: epoch + 20, Running: []uint64{epoch - 3}}, 1<<32 - 3, false},
		"ended in the last epoch":      {snapshot.Snapshot{Oldest: epoch - 3, Next: epoch + 20, Running: []uint64{epoch - 3}}, 1<<32 - 2, true},
		"not begun before the wrap":    {snapshot.Snapshot{Oldest: epoch - 5, Next: epoch - 5}, 3, false},
	} {
		assert.Equal(t, test.shows, test.s.Shows(test.transaction), name)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	b := binary.BigEndian.AppendUint32(nil, 2)
	for _, n := range []uint64{10, 20, 10, 15} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	s, err := snapshot.Parse(b)
	require.NoError(t, err)
	assert.Equal(t, snapshot.Snapshot{Oldest: 10, Next: 20, Running: []uint64{10, 15}}, s)
	_, err = snapshot.Parse(b[:len(b)-1])
	require.Error(t, err)
	_, err = snapshot.Parse(nil)
	require.Error(t, err)
}
