// Package snapshot decides which transactions a snapshot of the server shows. It does no I/O and has no clock.
package snapshot

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Snapshot is a pg_snapshot. It shows the transactions that had ended when it was taken. The zero Snapshot shows none.
type Snapshot struct {
	Oldest  uint64   // no transaction below it was running
	Next    uint64   // no transaction from it on had begun
	Running []uint64 // of those between, ascending
}

// Parse reads the binary form of a pg_snapshot: src/backend/utils/adt/xid8funcs.c (pg_snapshot_send) defines it.
func Parse(b []byte) (s Snapshot, err error) {
	if len(b) < 20 || len(b) != 20+8*int(binary.BigEndian.Uint32(b)) {
		return s, errors.New("the server sent a snapshot in a form that this program does not know")
	}
	s.Oldest, s.Next = binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])
	for b = b[20:]; len(b) > 0; b = b[8:] {
		s.Running = append(s.Running, binary.BigEndian.Uint64(b))
	}
	return s, nil
}

// Shows reports whether the snapshot shows a transaction that has committed. The WAL has only the lower half of its ID, which is less than
// 2^31 away from the snapshot's.
func (s Snapshot) Shows(transaction uint32) bool {
	id := s.Next + uint64(int64(int32(transaction-uint32(s.Next))))
	if id >= s.Next {
		return false
	}
	_, running := slices.BinarySearch(s.Running, id)
	return !running
}
