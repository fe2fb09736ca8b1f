package group

import (
	"reflect"

	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// watermillKafka is watermill-kafka's package. It puts partition, offset, timestamp and key of a record into the message's context, where
// MessagePartitionFromCtx and three similar functions read them.
const watermillKafka = "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

// The values of its contextKey, which is not exported.
const (
	watermillPartition = iota + 1
	watermillOffset
	watermillTimestamp
	watermillKey
)

// Value implements context.Context. It has the message's record. It also answers watermill-kafka's keys, so that handlers that use its functions need no change. It
// recognizes the keys by the name of their type, which is not exported.
func (d *delivery) Value(key any) any {
	if key == (wire.RecordKey{}) {
		return d.record
	}
	if k := reflect.ValueOf(key); k.Kind() == reflect.Int && k.Type().Name() == "contextKey" && k.Type().PkgPath() == watermillKafka {
		switch k.Int() {
		case watermillPartition:
			return d.record.Partition
		case watermillOffset:
			return d.record.Offset
		case watermillTimestamp:
			return d.record.Timestamp
		case watermillKey:
			return d.record.Key
		}
	}
	return d.Context.Value(key)
}
