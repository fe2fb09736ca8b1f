package main

import (
	"math/rand/v2"
	"strconv"

	"github.com/millrace-go/millrace/outbox"
)

const (
	keys         = 1000
	payloadBytes = 1024
	topic        = "order.placed"
)

// event is one row of a backlog, whichever table it goes to.
type event struct {
	id, key string
	payload []byte
}

// newBacklog returns n events of 1,000 keys with payloads of 1 KB that do not compress, the same payloads in every run.
func newBacklog(n int) []event {
	noise := rand.NewChaCha8([32]byte{})
	buffer := make([]byte, 1<<20)
	_, _ = noise.Read(buffer) // never fails
	pick := rand.New(noise)
	events := make([]event, n)
	for i := range events {
		at := pick.IntN(len(buffer) - payloadBytes)
		events[i] = event{
			id:      outbox.NewID(),
			key:     "order-" + strconv.Itoa(pick.IntN(keys)),
			payload: buffer[at : at+payloadBytes : at+payloadBytes],
		}
	}
	return events
}
