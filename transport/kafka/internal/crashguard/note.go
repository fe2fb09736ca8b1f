// Package crashguard finds poison messages, which end their process, without a database. It decides which messages of a partition run
// together, which run alone, and which are rejected. It does no I/O and has no clock.
package crashguard

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Note is the group's record of a partition, stored in the metadata of its committed offset. The zero Note is empty metadata.
type Note struct {
	Starts int           // processes that began to handle the partition and did not give it back
	Left   int           // how many messages, from the offset on, may have been in flight in them
	Alone  map[int64]int // by offset: processes that began to handle the message alone and did not survive it
}

// prefix distinguishes a note from the metadata of other clients.
const prefix = "millrace"

// String encodes the note as metadata.
func (n Note) String() string {
	if n.Starts == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s starts=%d left=%d", prefix, n.Starts, n.Left)
	separator := " alone="
	for _, offset := range slices.Sorted(maps.Keys(n.Alone)) {
		fmt.Fprintf(&b, "%s%d:%d", separator, offset, n.Alone[offset])
		separator = ","
	}
	return b.String()
}

// Parse decodes metadata. For metadata of another client it returns the zero Note.
func Parse(metadata string) Note {
	fields := strings.Fields(metadata)
	if len(fields) == 0 || fields[0] != prefix {
		return Note{}
	}
	var n Note
	for _, field := range fields[1:] {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "starts":
			n.Starts = number(value)
		case "left":
			n.Left = number(value)
		case "alone":
			n.Alone = map[int64]int{}
			for entry := range strings.SplitSeq(value, ",") {
				offset, times, _ := strings.Cut(entry, ":")
				at, err := strconv.ParseInt(offset, 10, 64)
				if err == nil && at >= 0 && number(times) > 0 {
					n.Alone[at] = number(times)
				}
			}
		}
	}
	if n.Starts == 0 || n.Left == 0 {
		return Note{}
	}
	return n
}

// number parses a count; invalid text is 0.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return n
}
