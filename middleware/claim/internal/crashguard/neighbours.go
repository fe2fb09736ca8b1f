package crashguard

import (
	"time"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
)

// Pace is the timing of the processes' heartbeats. Ages are by the server's clock.
type Pace struct {
	Beat   time.Duration // between two renewals
	Silent time.Duration // a process whose row is older was killed
	Memory time.Duration // how long a killed process is a reason for suspicion, because a poison message may be redelivered late
	Slack  time.Duration // how long a handler may run past its deadline

	Journal time.Duration // between two writes of the journal
}

var defaultPace = Pace{Beat: 2 * time.Second, Silent: inbox.Silent, Memory: time.Hour, Slack: 5 * time.Second, Journal: 10 * time.Second}

// neighbour is another process's row.
type neighbour struct {
	id   int64
	beat time.Time
	age  time.Duration // since its last beat
}

// neighbours judges the other processes by their rows. A row of the first look may belong to a process that was just killed, until
// the row is renewed or becomes old. A row that appears later belongs to a process that was alive then.
type neighbours struct {
	Pace
	unknown map[int64]time.Time // beats of the rows of the first look, until they are renewed; nil before the first look
	alive   map[int64]bool
}

// look reports whether there is a reason for suspicion, and whether the reason is a killed process. A process of the first look may
// well be alive, as are the processes that start at the same time as this one.
func (n *neighbours) look(rows []neighbour) (suspicious, killed bool) {
	first := n.unknown == nil
	if first {
		n.unknown = map[int64]time.Time{}
	}
	n.alive = map[int64]bool{} // a new map: others read the old one
	for _, r := range rows {
		if first {
			n.unknown[r.id] = r.beat
		}
		if beat, unknown := n.unknown[r.id]; !unknown || !beat.Equal(r.beat) {
			delete(n.unknown, r.id)
		}
		_, unknown := n.unknown[r.id]
		switch {
		case r.age > n.Silent:
			killed = killed || r.age < n.Memory
		case unknown:
			suspicious = true
		default:
			n.alive[r.id] = true
		}
	}
	return suspicious || killed, killed
}
