// Package enum writes and reads the values of enumerations as words: CreateMissing is create_missing.
package enum

import (
	"fmt"
	"strings"
	"unicode"
)

// Value is a value of an enumeration whose String returns its name.
type Value interface {
	~int
	fmt.Stringer
}

// Text returns the word for v, which must be one of all.
func Text[T Value](v T, all ...T) ([]byte, error) {
	for _, known := range all {
		if v == known {
			return []byte(Word(v.String())), nil
		}
	}
	return nil, fmt.Errorf("%s has no word: want %s", v, words(all))
}

// Read sets v to the value of all that the word names.
func Read[T Value](v *T, word []byte, all ...T) error {
	for _, known := range all {
		if string(word) == Word(known.String()) {
			*v = known
			return nil
		}
	}
	return fmt.Errorf("want %s", words(all))
}

func words[T Value](all []T) string {
	list := make([]string, len(all))
	for i, v := range all {
		list[i] = Word(v.String())
	}
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}

// Word converts a Go name to snake case: "MaxInFlight" to "max_in_flight", "ProjectID" to "project_id", "LZ4" to "lz4".
func Word(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
