package figures

import (
	"slices"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Shares tells which relay holds which shard.
type Shares struct {
	Relays  []Holder
	Free    []outboxadmin.ShardReport // shards with events and without a relay
	Suspect []outboxadmin.ShardReport
}

// Holder is a relay, with a cell for each shard.
type Holder struct {
	Relay
	Cells []*outboxadmin.ShardReport // nil where another one holds the shard
}

// Share gives each relay its shards.
func Share(r *outboxadmin.Report, relays []Relay) (s Shares) {
	byName := map[string]int{}
	for _, relay := range relays {
		if relay.Alive {
			byName[relay.Name], byName[relay.ID] = len(s.Relays), len(s.Relays)
			s.Relays = append(s.Relays, Holder{Relay: relay, Cells: make([]*outboxadmin.ShardReport, len(r.Shards))})
		}
	}
	for i, shard := range r.Shards {
		if shard.Suspect != "" || shard.UncleanTakeovers > 1 {
			s.Suspect = append(s.Suspect, shard)
		}
		at, known := byName[shard.Relay]
		if shard.Held && known {
			s.Relays[at].Cells[i] = &r.Shards[i]
		} else if shard.Pending.N > 0 {
			s.Free = append(s.Free, shard)
		}
	}
	slices.SortStableFunc(s.Relays, func(a, b Holder) int { return b.Shards - a.Shards })
	return s
}
