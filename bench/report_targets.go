package main

import (
	"maps"
	"math"
	"strconv"
)

// target is what a ratio, or a measure, is to reach.
type target struct {
	want   float64
	quick  float64 // in its place with -quick, where that measures less; 0: the same
	atMost bool    // else at least
	full   bool    // -quick does not measure it
}

func atLeast(want float64) target { return target{want: want} }
func atMost(want float64) target  { return target{want: want, atMost: true} }

// targets are the one source of what is asked of whom, by scenario and name. What is not here is told for information. A
// test compares it with README.md.
var targets = map[string]map[string]target{
	"outbox-write": {
		"with_outbox_vs_plain":             atLeast(0.92),
		"with_outbox_vs_plain_rtt":         atLeast(1.2),
		"caller_tx_vs_plain":               atLeast(0.65),
		"producers_with_relays_vs_without": atLeast(0.85),
	},
	"relay-drain": {
		"vs_skip_locked":           atLeast(2),
		"vs_single_select":         atLeast(0.2),
		"vs_watermill_sql":         {want: 50, quick: 5}, // at a fifth of the rows
		"vs_watermill_sql_200k":    {want: 5, full: true},
		"vs_forwarder":             atLeast(10),
		"slow_broker_vs_forwarder": atLeast(100),
		"cost_large_vs_small":      atMost(2),
		"held_xmin_vs_free":        atLeast(0.7),
		"dead_topic_vs_without":    atLeast(0.9),
	},
	"relay-held": {
		"held_xmin_5m_vs_free": atLeast(0.7),
		heldP99:                atMost(100),
	},
	"relay-latency": {
		"nudge_p99_ms":         atMost(5),
		"other_process_p99_ms": atMost(20),
	},
	"relay-wal": {
		"wal_commit_to_publish_p99_ms": atMost(5),
		"log_vs_plain":                 atLeast(0.95),
	},
	"relay-kafka": {
		"transactional_vs_at_least_once": atLeast(0.8),
	},
	"claim": {
		"exec_vs_bare_commit":                     atLeast(0.45),
		"queue_vs_bare_commit":                    atLeast(0.58),
		"queue_vs_bare_commit_rtt":                atLeast(0.48),
		"lazy_exec_vs_bare_commit":                atLeast(0.47),
		"lazy_queue_vs_bare_commit":               atLeast(0.55),
		"lazy_exec_vs_bare_commit_rtt":            atLeast(0.45),
		"lazy_queue_vs_bare_commit_rtt":           atLeast(0.78),
		"lazy_queue_vs_bare_commit_rtt_slow_disk": atLeast(0.78),
		"lazy_queue_vs_five_statements_rtt":       atLeast(3),
		"exec_vs_five_statements":                 atLeast(1.35),
		"queue_vs_five_statements":                atLeast(1.6),
		"group_vs_bare_commit":                    atLeast(1.8),
		"deferred_vs_sync":                        atLeast(2),
		"fail_fast_vs_blocking":                   atLeast(1.3),
		"processed_3m_vs_empty":                   atLeast(0.9),
		"claim_lost_percent":                      atMost(0),
	},
	"pubsub": {
		"publish_vs_watermill_googlecloud": atLeast(50),
		"publish_vs_bare_client":           atLeast(0.8),
		"consume_vs_bare_client":           atLeast(0.8),
	},
	"end-to-end": {
		"p99_ms":         atMost(250),
		"ordered_p99_ms": atMost(250),
	},
	"console": {
		"page_p95_ms": atMost(300),
	},
	"kafka-eos": {
		"vs_franz_go_1ms":                    atLeast(0.9),
		"vs_franz_go_1000_1ms":               atLeast(0.9),
		"router_vs_watermill_kafka_1ms":      atLeast(20),
		"router_vs_watermill_kafka_0ms":      atLeast(4),
		"vs_own_at_least_once":               atLeast(0.8),
		"add_partitions_per_transaction":     atMost(0),
		"add_offsets_per_transaction":        atMost(0),
		"offset_commits_per_transaction":     atMost(1),
		"end_txn_per_transaction":            atMost(1),
		"produce_per_broker_and_transaction": atMost(1),
		"requests_per_transaction":           atMost(2.2),
	},
}

// asked are the targets of a scenario.
func asked(scenario string, quick bool) map[string]target {
	all := maps.Clone(targets[scenario])
	maps.DeleteFunc(all, func(_ string, t target) bool { return quick && t.full })
	return all
}

// of is the target with or without -quick.
func (t target) of(quick bool) float64 {
	if quick && t.quick != 0 {
		return t.quick
	}
	return t.want
}

// met judges the figure as it is shown, with two digits.
func (t target) met(value float64, quick bool) bool {
	shown := math.Round(value*100) / 100
	if t.atMost {
		return shown <= t.of(quick)
	}
	return shown >= t.of(quick)
}

func (t target) text(quick bool) string {
	sign := "≥ "
	if t.atMost {
		sign = "≤ "
	}
	return sign + strconv.FormatFloat(t.of(quick), 'f', -1, 64)
}
