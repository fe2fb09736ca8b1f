package machine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// CompareVersions orders dotted numbers.
func CompareVersions(a, b string) int {
	number := func(part string) int {
		n, _ := strconv.Atoi(part) // what is no number sorts as 0
		return n
	}
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		return cmp.Compare(number(x), number(y))
	})
}
