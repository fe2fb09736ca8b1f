package claim

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/outbox"
)

// dueTime is when a delayed event was due, as the outbox wrote it; zero for any other.
func dueTime(msg *message.Message) time.Time {
	const layout = "2006-01-02T15:04:05.000000Z"
	text := msg.Metadata.Get(outbox.DueMetadata)
	due, err := time.Parse(layout, text)
	if err != nil || due.Format(layout) != text { // Parse forgives
		return time.Time{}
	}
	return due
}

func recordID(k Key) pgtype.UUID { return inbox.Record(k.EventID, k.Due) }

func hashedID(k Key) pgtype.UUID { return inbox.Hash(k.EventID) }

func lockKey(schema string, k Key) int64 { return inbox.Lock(schema, k.Consumer, k.EventID) }

// recordTime is when the event was minted, or due. It is unknown where the ID is no UUIDv7.
func recordTime(k Key) (time.Time, bool) { return inbox.Time(recordID(k)) }
