package machine

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// CompareVersions orders dotted version numbers.
func CompareVersions(a, b string) int {
	number := func(part string) int {
		n, _ := strconv.Atoi(part) // anything that is not a number sorts as 0
		return n
	}
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		return cmp.Compare(number(x), number(y))
	})
}

var version = regexp.MustCompile(`[0-9]+(\.[0-9]+)+`)

// FindVersion returns the first version in the text, or "".
func FindVersion(text string) string { return version.FindString(text) }
