package devtest

import (
	"crypto/rand"
	"strings"
	"testing"
)

// Topic returns a name that no other test uses and that both Pub/Sub and Kafka accept: "t.<test>.<random>".
func Topic(t testing.TB) string { return name(t, "t.", '.', 40) }

// Project returns the ID of a Pub/Sub project that no other test uses: "t-<test>-<random>", at most 30 characters.
func Project(t testing.TB) string { return name(t, "t-", '-', 15) }

// name joins the prefix, the usable characters of the test's name up to the limit, and 60 random bits. All three kinds of names take
// lower-case letters and digits. Other characters of the test's name become an underscore in a schema's name and a dash elsewhere. (In
// Kafka, topics whose names differ only in dots and underscores collide in metrics.)
func name(t testing.TB, prefix string, separator byte, limit int) string {
	filler := byte('-')
	if separator == '_' {
		filler = '_'
	}
	var short []byte
	for _, c := range []byte(strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))) {
		if c < 'a' || c > 'z' {
			if c < '0' || c > '9' {
				c = filler
			}
		}
		if c == filler && len(short) > 0 && short[len(short)-1] == filler {
			continue
		}
		if short = append(short, c); len(short) == limit {
			break
		}
	}
	middle := strings.Trim(string(short), string(filler))
	return prefix + middle + string(separator) + strings.ToLower(rand.Text()[:12])
}
