package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The relay's own statements are sent in binary, unprepared, many in one round trip. So each is planned for the table's current state (a
// plan made while the table was empty would stay a sequential scan), and a pooler in transaction mode has no prepared statements to
// confuse.

// statement is one statement of a round trip, with its arguments and the handling of its rows. The values that row gets are valid only
// during the call.
type statement struct {
	sql  string
	args []argument
	row  func(values [][]byte) error
	done func(tag pgconn.CommandTag)
}

// argument is a value in PostgreSQL's binary form.
type argument struct {
	oid   uint32
	value []byte
}

var (
	begin  = statement{sql: `begin isolation level read committed`} // whatever the role's default: a serializable relay would make producers fail
	commit = statement{sql: `commit`}
)

func smallint(v int16) argument {
	return argument{pgtype.Int2OID, binary.BigEndian.AppendUint16(nil, uint16(v))}
}

func integer(v int) argument {
	return argument{pgtype.Int4OID, binary.BigEndian.AppendUint32(nil, uint32(v))}
}

func bigint(v int64) argument {
	return argument{pgtype.Int8OID, binary.BigEndian.AppendUint64(nil, uint64(v))}
}
func text(v string) argument { return argument{pgtype.TextOID, []byte(v)} }

func boolean(v bool) argument {
	if v {
		return argument{pgtype.BoolOID, []byte{1}}
	}
	return argument{pgtype.BoolOID, []byte{0}}
}

func id(v uuid.UUID) argument { return argument{pgtype.UUIDOID, v[:]} }

func int2s(vs []int16) argument {
	return array(pgtype.Int2ArrayOID, pgtype.Int2OID, len(vs), 2, func(b []byte, i int) []byte {
		return binary.BigEndian.AppendUint16(b, uint16(vs[i]))
	})
}

func int4s(vs []int32) argument {
	return array(pgtype.Int4ArrayOID, pgtype.Int4OID, len(vs), 4, func(b []byte, i int) []byte {
		return binary.BigEndian.AppendUint32(b, uint32(vs[i]))
	})
}

func int8s(vs []int64) argument {
	return array(pgtype.Int8ArrayOID, pgtype.Int8OID, len(vs), 8, func(b []byte, i int) []byte {
		return binary.BigEndian.AppendUint64(b, uint64(vs[i]))
	})
}

func texts(vs []string) argument {
	return array(pgtype.TextArrayOID, pgtype.TextOID, len(vs), 40, func(b []byte, i int) []byte { return append(b, vs[i]...) })
}

func byteas(vs [][]byte) argument {
	size := 0
	for _, v := range vs {
		size += len(v)
	}
	return array(pgtype.ByteaArrayOID, pgtype.ByteaOID, len(vs), size/max(len(vs), 1), func(b []byte, i int) []byte { return append(b, vs[i]...) })
}

// lsnOID is the OID of pg_lsn, for which pgtype has no name.
const lsnOID = 3220

func lsn(v uint64) argument { return argument{lsnOID, binary.BigEndian.AppendUint64(nil, v)} }

// tidArrayOID is the OID of tid[], for which pgtype has no name.
const tidArrayOID = 1010

// array returns a one-dimensional array without nulls. According to https://www.postgresql.org/docs/current/protocol-overview.html, each
// type defines its binary form; src/backend/utils/adt/arrayfuncs.c (array_recv) defines this one.
func array(oid, element uint32, n, size int, put func(b []byte, i int) []byte) argument {
	b := make([]byte, 0, 20+n*(4+size))
	dimensions := uint32(1)
	if n == 0 {
		dimensions = 0
	}
	b = binary.BigEndian.AppendUint32(b, dimensions)
	b = binary.BigEndian.AppendUint32(b, 0) // no nulls
	b = binary.BigEndian.AppendUint32(b, element)
	if n > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		b = binary.BigEndian.AppendUint32(b, 1) // the lower bound
	}
	for i := range n {
		at := len(b)
		b = put(append(b, 0, 0, 0, 0), i)
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	return argument{oid, b}
}

func asInt2(b []byte) int16   { return int16(binary.BigEndian.Uint16(b)) }
func asInt4(b []byte) int     { return int(int32(binary.BigEndian.Uint32(b))) }
func asInt8(b []byte) int64   { return int64(binary.BigEndian.Uint64(b)) }
func asUint8(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// asTime converts a timestamptz: microseconds since 2000.
func asTime(b []byte) time.Time {
	return postgresEpoch.Add(time.Duration(asInt8(b)) * time.Microsecond)
}

var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

var binaryFormat = []int16{1}

// roundTrip sends all statements at once and passes on their rows. It returns the first error; the server runs no statement after it.
func roundTrip(ctx context.Context, pool *pgxpool.Pool, statements ...statement) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // a connection that is broken or in a transaction is closed
	return exchange(ctx, conn.Conn().PgConn(), statements...)
}

// exchange is roundTrip on a given connection.
func exchange(ctx context.Context, conn *pgconn.PgConn, statements ...statement) (err error) {
	pipeline := conn.StartPipeline(ctx)
	for _, s := range statements {
		values, oids := make([][]byte, len(s.args)), make([]uint32, len(s.args))
		for i, a := range s.args {
			values[i], oids[i] = a.value, a.oid
		}
		pipeline.SendQueryParams(s.sql, values, oids, binaryFormat, binaryFormat)
	}
	if err := pipeline.Sync(); err != nil {
		_ = pipeline.Close() // the first error matters
		return err
	}
	for _, s := range statements {
		if err = receive(pipeline, s); err != nil {
			break
		}
	}
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	return err
}

func receive(pipeline *pgconn.Pipeline, s statement) error {
	result, err := pipeline.GetResults()
	if err != nil {
		return err
	}
	reader, ok := result.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("the server answered a statement with %T", result)
	}
	var rowErr error
	for reader.NextRow() {
		if s.row != nil && rowErr == nil {
			rowErr = s.row(reader.Values())
		}
	}
	tag, err := reader.Close()
	if err != nil {
		return err
	}
	if s.done != nil {
		s.done(tag)
	}
	return rowErr
}
