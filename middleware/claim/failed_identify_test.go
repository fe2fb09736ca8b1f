package claim_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// foreignConfig takes the ID from a header of the producer's, once somebody has set it so.
func foreignConfig(remedy *atomic.Bool) claim.Config {
	return claim.Config{
		Logger: silent,
		EventID: func(msg *message.Message) (string, error) {
			if !remedy.Load() && msg.UUID == "" {
				return "", nil
			}
			return msg.UUID + msg.Metadata.Get("ce_id"), nil
		},
	}
}

func foreignMessage(id, key string) *message.Message {
	msg := keyed("", key)
	msg.Metadata.Set("ce_id", id)
	return msg
}

func (f *fixture) replayAll(s deadletter.Selection) {
	_, err := deadletter.Replay(f.t.Context(), f.pool, f.schema, s, deadletter.By{Actor: "ada"})
	require.NoError(f.t, err)
}

// malformed returns the IDs of dead letters that had no usable one.
func (f *fixture) malformed() (ids []string) {
	for _, row := range f.failed() {
		if row.State == "dead" && row.Reason == "malformed" {
			ids = append(ids, row.EventID)
		}
	}
	return ids
}

// A message without an ID is never handled: after the remedy its redelivery would be another event.
func TestForeignRecordIsNotReplayedWithoutAnID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	var remedy atomic.Bool
	f.serve(m, foreignConfig(&remedy), func(msg *message.Message) error { return f.effect(msg.Context(), msg.Metadata.Get("ce_id")) })
	f.publish(m, foreignMessage("1", ""))
	f.eventually(func() bool { return len(f.malformed()) == 1 }, "a dead letter")
	assert.Contains(t, f.failed()[0].Error, "the message has no event ID: have its producer send one, or set claim.Config.EventID in Go")
	for range 2 {
		f.replayAll(deadletter.Selection{})
		f.eventually(func() bool { return len(f.malformed()) == 1 }, "a dead letter again")
		assert.Empty(t, f.effects())
	}
	remedy.Store(true)
	f.replayAll(deadletter.Selection{})
	f.eventually(func() bool { return len(f.failed()) == 0 }, "handled")
	f.publish(m, foreignMessage("1", ""), foreignMessage("2", ""))
	f.eventually(func() bool { return f.effects()["2"] == 1 }, "the next one")
	assert.Equal(t, map[string]int{"1": 1, "2": 1}, f.effects())
}

// With its ID it gets its place in its key, too.
func TestForeignRecordIsReplayedInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keepHandled()
	m := f.broker()
	var remedy, mended atomic.Bool
	cfg := foreignConfig(&remedy)
	cfg.Ordered = true
	f.serve(m, cfg, func(msg *message.Message) error {
		if msg.UUID == "b" && !mended.Load() {
			return claim.Permanent(errOops)
		}
		msg.UUID += msg.Metadata.Get("ce_id")
		return f.note(msg)
	})
	f.publish(m, foreignMessage("a", "k"), keyed("b", "k"), foreignMessage("c", "k"), keyed("d", "k"))
	f.eventually(func() bool { return slices.Contains(f.inOrder(), "d blocked") && len(f.malformed()) == 2 }, "all are kept")
	remedy.Store(true)
	f.replayAll(deadletter.Selection{EventIDs: f.malformed()})
	f.eventually(func() bool { return strings.Join(f.inOrder(), ", ") == "b dead, c blocked, d blocked" }, "a goes before b, and c waits behind it")
	mended.Store(true)
	f.replayAll(deadletter.Selection{EventIDs: []string{"b"}})
	f.eventually(func() bool { return len(f.failed()) == 0 }, "all are handled")
	assert.Equal(t, map[string]string{"k": "a b c d"}, f.handledByKey())
	assert.Zero(t, f.count("claim_key"))
}

// The broker's redelivery under the new ID is in the hands of a handler, or has failed, while its dead letter is replayed.
func TestForeignRecordIsReplayedBesideItsRedelivery(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]error{"that succeeds": nil, "that fails": errOops} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			m := f.broker()
			var remedy atomic.Bool
			f.serve(m, foreignConfig(&remedy), func(msg *message.Message) error { return f.effect(msg.Context(), msg.Metadata.Get("ce_id")) })
			f.publish(m, foreignMessage("1", ""))
			f.eventually(func() bool { return len(f.malformed()) == 1 }, "a dead letter")
			remedy.Store(true)

			entered, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			cfg := foreignConfig(&remedy)
			cfg.MaxAttempts = 1000
			mw := f.middleware(cfg)
			go func() {
				msg, _ := deliver(t, "")
				msg.Metadata.Set("ce_id", "1")
				_, err := mw(func(msg *message.Message) ([]*message.Message, error) {
					close(entered)
					<-release
					if outcome != nil {
						return nil, outcome
					}
					return nil, f.effect(msg.Context(), "1")
				})(msg)
				ended <- err
			}()
			<-entered
			f.replayAll(deadletter.Selection{})
			f.eventually(func() bool { return len(f.malformed()) == 0 }, "it is brought back")
			close(release)
			if err := <-ended; err != nil { // nil also where the replay was faster than the note of the failure: the event is kept
				require.ErrorIs(t, err, outcome)
			}
			f.eventually(func() bool { return len(f.failed()) == 0 }, "it is settled")
			assert.Equal(t, map[string]int{"1": 1}, f.effects())
		})
	}
}
