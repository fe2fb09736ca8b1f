package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// columns are those of the outbox that a relay needs, in the order of their places in a decoder.
var columns = [...]string{"shard", "seq", "event_id", "topic", "key", "headers", "payload", "created_at"}

// decoder makes rows of the messages of pgoutput, version 1, with binary values:
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html. Each transaction comes as a whole, after its commit.
type decoder struct {
	relation uint32            // the outbox; 0: not known yet
	places   [len(columns)]int // of the columns in a row
	writer   uint32            // the transaction that is being received
	within   bool              // there is one
	end      pglogrepl.LSN     // of the last complete transaction
}

// decode decodes one message. It returns a row, or whether a transaction is complete.
func (d *decoder) decode(b []byte) (row Row, isRow, complete bool, err error) {
	if len(b) == 0 {
		return row, false, false, errors.New("the WAL has an empty message")
	}
	switch pglogrepl.MessageType(b[0]) {
	case pglogrepl.MessageTypeInsert:
		row, err = d.insert(b[1:])
		return row, err == nil, false, err
	case pglogrepl.MessageTypeRelation, pglogrepl.MessageTypeBegin, pglogrepl.MessageTypeCommit:
	default:
		return row, false, false, nil
	}
	msg, err := pglogrepl.Parse(b)
	if err != nil {
		return row, false, false, err
	}
	switch msg := msg.(type) {
	case *pglogrepl.RelationMessage:
		return row, false, false, d.learn(msg)
	case *pglogrepl.BeginMessage:
		d.writer, d.within = msg.Xid, true
	case *pglogrepl.CommitMessage:
		d.end, d.within = msg.TransactionEndLSN, false
		return row, false, true, nil
	}
	return row, false, false, nil
}

// learn records where the columns are.
func (d *decoder) learn(msg *pglogrepl.RelationMessage) error {
	d.relation = msg.RelationID
	for i, name := range columns {
		d.places[i] = -1
		for place, c := range msg.Columns {
			if c.Name == name {
				d.places[i] = place
			}
		}
		if d.places[i] < 0 {
			return fmt.Errorf("the publication has no column %s of %s.%s", name, msg.Namespace, msg.RelationName)
		}
	}
	return nil
}

var errRow = errors.New("the WAL has a row in a form that this program does not know")

func (d *decoder) insert(b []byte) (Row, error) {
	if len(b) < 7 || b[4] != 'N' || !d.within || binary.BigEndian.Uint32(b) != d.relation {
		return Row{}, errRow
	}
	values := make([][]byte, binary.BigEndian.Uint16(b[5:]))
	b = b[7:]
	for i := range values {
		if len(b) < 5 || b[0] != pglogrepl.TupleDataTypeBinary {
			return Row{}, errRow
		}
		n := int(binary.BigEndian.Uint32(b[1:]))
		if len(b) < 5+n {
			return Row{}, errRow
		}
		values[i], b = b[5:5+n], b[5+n:]
	}
	var v [len(columns)][]byte
	for i, place := range d.places {
		if place >= len(values) {
			return Row{}, errRow
		}
		v[i] = values[place]
	}
	if len(v[0]) != 2 || len(v[1]) != 8 || len(v[7]) != 8 {
		return Row{}, errRow
	}
	e := &step.Event{Row: step.Row{
		Seq: int64(binary.BigEndian.Uint64(v[1])), EventID: string(v[2]), Topic: string(v[3]), Key: string(v[4]), Size: len(v[5]) + len(v[6]),
		Payload: append([]byte{}, v[6]...), Written: epoch.Add(time.Duration(binary.BigEndian.Uint64(v[7])) * time.Microsecond),
	}}
	if string(v[5]) != "{}" {
		e.Headers = append([]byte{}, v[5]...)
	}
	return Row{Shard: int16(binary.BigEndian.Uint16(v[0])), Transaction: d.writer, Event: e}, nil
}

// epoch is when PostgreSQL's timestamps begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
