package crashguard

import (
	"time"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
)

// Pace is how processes tell that they live. Ages are measured by the server's clock.
type Pace struct {
	Beat   time.Duration // between two renewals
	Silent time.Duration // a row that is older is one of a process that was killed
	Memory time.Duration // how long that is a reason to be suspicious: a killer may be redelivered late
	Slack  time.Duration // what a handler may take to end after its deadline

	Journal time.Duration // between two writes of what was counted
}

var defaultPace = Pace{Beat: 2 * time.Second, Silent: inbox.Silent, Memory: time.Hour, Slack: 5 * time.Second, Journal: 10 * time.Second}

// neighbour is another process's row.
type neighbour struct {
	id   int64
	beat time.Time
	age  time.Duration // since its last beat
}

// neighbours judges other processes by their rows, look by look. What it finds at its first look may be of one that was
// killed a moment ago, until it is renewed or grows old; what comes later was alive when it came.
type neighbours struct {
	Pace
	unknown map[int64]time.Time // by their beat at the first look; nil before it
	alive   map[int64]bool
}

// look reports whether there is a reason to be suspicious, and whether that is a process that was killed: a process that is
// seen for the first time may be alive, as are those that start beside this one.
func (n *neighbours) look(rows []neighbour) (suspicious, killed bool) {
	first := n.unknown == nil
	if first {
		n.unknown = map[int64]time.Time{}
	}
	n.alive = map[int64]bool{} // a new one: others read the old
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
