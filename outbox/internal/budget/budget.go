// Package budget decides how many rows and bytes a read of a shard asks for. It does no I/O, has no clock and starts no goroutine.
package budget

const (
	// Most is the highest limit of the payloads' bytes that a read returns.
	Most = 16 << 20
	// Least is the lowest one. A failed read halves the limit.
	Least = 64 << 10
	// firstRead is how many rows of a shard are read while their size is not known.
	firstRead = 20
	// firstSize is the assumed size of a row in bytes until then.
	firstSize = 64 << 10
	// bareSize is the assumed size of a row without its payload.
	bareSize = 256
)

// Budget is what a read of one shard may return. It is not safe for concurrent use.
type Budget struct {
	average int // bytes of a row; 0: not known
	bytes   int // the limit of a read
	passed  int // deferred rows that the last read of a scan returned
}

// New returns the Budget of a shard whose rows are not known.
func New() Budget { return Budget{bytes: Most} }

// Bytes returns the limit of all payloads together.
func (b *Budget) Bytes() int { return b.bytes }

// Failed records that a read failed, perhaps because it was too large.
func (b *Budget) Failed() { b.bytes = max(b.bytes/2, Least) }

// OK records that a read was answered.
func (b *Budget) OK() { b.bytes = min(2*b.bytes, Most) }

// Sized records the size of a row's headers and payload.
func (b *Budget) Sized(bytes int) {
	if bytes > 0 {
		b.average = (b.average*7 + bytes + 200) / 8
	}
}

// Size returns the assumed size of a row in bytes.
func (b *Budget) Size() int {
	if b.average == 0 {
		return firstSize
	}
	return b.average
}

// Rows returns how many new rows to read, at most a batch.
func (b *Budget) Rows(batch int) int {
	if b.average == 0 {
		return min(batch, firstRead)
	}
	return max(min(batch, b.bytes/b.average), 1)
}

// Each returns the limit of one payload that bounds a read of so many rows too. It is 0 if the rows may be too large for that.
func (b *Budget) Each(rows int) int {
	each := b.bytes / rows
	if b.average == 0 || 4*b.average > each {
		return 0
	}
	return each
}

// Passed records how many deferred rows a read of a scan has returned.
func (b *Budget) Passed(rows int) { b.passed = rows }

// Passes returns how many deferred rows the next read of a scan may return: twice as many as the last one did. The scan must get past
// them also while a transaction is open that keeps it from ending, because events of other topics may follow.
func (b *Budget) Passes() int { return min(2*b.passed, b.bytes/bareSize) }
