package main

import (
	"fmt"
	"strings"
	"time"
)

// verdict is what became of the messages.
type verdict struct {
	input      int
	duplicates int
	missing    int
	foreign    int // in the output, and not in the input
	disordered int // that stand behind a later one of their partition

	// The same of the reader that read along.
	readDuplicates, readMissing int

	hanging         int64 // offsets that readers are kept from by a transaction that nobody ended
	unclean         int   // copiers that did not end well in the end
	commits, aborts int
	took            time.Duration
}

func (v verdict) good() bool {
	return v.duplicates+v.missing+v.foreign+v.disordered+v.readDuplicates+v.readMissing+int(v.hanging)+v.unclean == 0
}

// judge compares the sets, and the order where that counts.
func judge(input, output, concurrent []record, ordered bool) verdict {
	v := verdict{input: len(input)}
	v.duplicates, v.missing, v.foreign = compare(input, output)
	v.readDuplicates, v.readMissing, _ = compare(input, concurrent)
	if ordered {
		v.disordered = disorder(output)
	}
	return v
}

func compare(input, output []record) (duplicates, missing, foreign int) {
	times := make(map[string]int, len(input))
	for _, one := range input {
		times[one.value] = 0
	}
	for _, one := range output {
		if _, ok := times[one.value]; !ok {
			foreign++
			continue
		}
		if times[one.value]++; times[one.value] > 1 {
			duplicates++
		}
	}
	for _, n := range times {
		if n == 0 {
			missing++
		}
	}
	return duplicates, missing, foreign
}

// disorder counts the records that stand behind a later one of the same partition of the input, in the same partition of
// the output.
func disorder(output []record) (n int) {
	type lane struct{ from, to int32 }
	last := map[lane]int{}
	for _, one := range output {
		var from origin
		if _, err := fmt.Sscanf(one.value, "%d.%d", &from.partition, &from.number); err != nil {
			continue // foreign
		}
		at := lane{from.partition, one.partition}
		if highest, ok := last[at]; ok && from.number < highest {
			n++
		} else {
			last[at] = from.number
		}
	}
	return n
}

// line tells the verdict.
func (v verdict) line(name string) string {
	var faults []string
	for _, fault := range []struct {
		n    int
		what string
	}{
		{v.duplicates, "duplicates"},
		{v.missing, "missing"},
		{v.foreign, "from nowhere"},
		{v.disordered, "out of order"},
		{v.readDuplicates, "duplicates read along"},
		{v.readMissing, "missing in what was read along"},
		{int(v.hanging), "offsets behind a hanging transaction"},
		{v.unclean, "copiers that did not end well"},
	} {
		if fault.n > 0 {
			faults = append(faults, fmt.Sprintf("%d %s", fault.n, fault.what))
		}
	}
	outcome := "good  no duplicate, none missing"
	if len(faults) > 0 {
		outcome = "BAD   " + strings.Join(faults, ", ")
	}
	return fmt.Sprintf("%-40s %s; %d messages, markers: %d commits, %d aborts, %.0f s", name, outcome, v.input, v.commits, v.aborts, v.took.Seconds())
}
