package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Synthetic returns an ID for a message without a usable ID, from its whole content and, if its transport has one, its origin. So
// redeliveries get the same ID, and with an origin, another message with the same content gets another ID.
func Synthetic(topic string, msg *message.Message, origin transport.Origin) string {
	h := sha256.New()
	add := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	add(topic)
	add(string(msg.Payload))
	add(msg.UUID)
	for _, k := range slices.Sorted(maps.Keys(msg.Metadata)) {
		add(k)
		add(msg.Metadata[k])
	}
	for _, k := range slices.Sorted(maps.Keys(origin)) {
		add(k)
		add(origin[k])
	}
	return "malformed:" + hex.EncodeToString(h.Sum(nil))
}
