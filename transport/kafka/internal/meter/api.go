package meter

import "math"

// api is a kind of request.
type api struct {
	name      string
	throttles int16 // the first version whose answer has a throttle time
	flexible  int16 // the first version whose answer has tagged fields
	last      bool  // the throttle time is the answer's last field, otherwise its first
}

// other is a kind that has no name here, so that there are not more names.
var other = api{name: "other", throttles: math.MaxInt16}

// apis are the requests that sarama and Millrace send, by their keys (https://kafka.apache.org/protocol#protocol_messages).
var apis = map[int16]api{
	0:  {"produce", 1, 9, true},
	1:  {"fetch", 1, 12, false},
	2:  {"list_offsets", 2, 6, false},
	3:  {"metadata", 3, 9, false},
	8:  {"offset_commit", 3, 8, false},
	9:  {"offset_fetch", 3, 6, false},
	10: {"find_coordinator", 1, 3, false},
	11: {"join_group", 2, 6, false},
	12: {"heartbeat", 1, 4, false},
	13: {"leave_group", 1, 4, false},
	14: {"sync_group", 1, 4, false},
	15: {"describe_groups", 1, 5, false},
	17: {"sasl_handshake", math.MaxInt16, math.MaxInt16, false},
	18: {"api_versions", math.MaxInt16, math.MaxInt16, false},
	19: {"create_topics", 2, 5, false},
	22: {"init_producer_id", 0, 2, false},
	24: {"add_partitions_to_txn", 0, 3, false},
	25: {"add_offsets_to_txn", 0, 3, false},
	26: {"end_txn", 0, 3, false},
	28: {"txn_offset_commit", 0, 3, false},
	32: {"describe_configs", 0, 4, false},
	36: {"sasl_authenticate", math.MaxInt16, math.MaxInt16, false},
	37: {"create_partitions", 0, 2, false},
}

func apiOf(key int16) api {
	if a, ok := apis[key]; ok {
		return a
	}
	return other
}
