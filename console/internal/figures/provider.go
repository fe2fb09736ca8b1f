package figures

import (
	"cmp"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Provider counts the effects in doubt whose keys have the same beginning.
type Provider struct {
	Name string
	outboxadmin.Count
}

// Providers groups effects in doubt by the beginning of their keys: service/sms.
func (s Snapshot) Providers() (all []Provider) {
	at := map[string]int{}
	for _, e := range s.Doubts {
		name := providerOf(e.Key)
		i, known := at[name]
		if !known {
			i = len(all)
			at[name] = i
			all = append(all, Provider{name, outboxadmin.Count{AtLeast: s.InDoubt.AtLeast}})
		}
		all[i].N++
	}
	slices.SortStableFunc(all, func(a, b Provider) int { return cmp.Compare(b.N, a.N) })
	return all
}

// providerOf returns the beginning of an effect's key: the service and the next word.
func providerOf(key string) string {
	service, rest, _ := strings.Cut(key, "/")
	if i := strings.IndexAny(rest, "/:"); i >= 0 {
		rest = rest[:i]
	}
	return service + "/" + rest
}
