package main

import (
	"context"
	"fmt"
	"time"
)

// Series of the report. Those that carry the name of a contestant are its drains of the usual backlog.
const (
	ofRelay     = "relay"
	ofSkip      = "skip_locked"
	ofSelect    = "single_select"
	ofForwarder = "forwarder"
	ofOagudo    = "oagudo"

	ofRelayBig      = "relay, grown backlog"
	ofWatermillBig  = "watermill_sql, grown backlog"
	ofRelayHuge     = "relay, huge backlog"
	ofWatermillHuge = "watermill_sql, huge backlog"

	ofRelayHeld = "relay, snapshot held"
	ofSkipHeld  = "skip_locked, snapshot held"

	ofRelayBroker     = "relay, slow broker"
	ofForwarderBroker = "forwarder, slow broker"
)

// core are the drains of the usual backlog. The relay and the articles' design take turns in going first; the SELECT
// stays between them.
func (s *drains) core() []trial {
	return []trial{
		{series: ofRelay, drainer: millrace{}, events: s.rows},
		{series: ofSelect, drainer: singleSelect{}, events: s.rows},
		{series: ofSkip, drainer: skipLocked{}, events: s.rows},
	}
}

// grown are the drains of a backlog that has grown, alone and over as many dead rows that a stranger's snapshot keeps.
func (s *drains) grown() []trial {
	return []trial{
		{series: ofRelayHeld, drainer: millrace{}, events: s.big, buried: s.big},
		{series: ofRelayBig, drainer: millrace{}, events: s.big},
	}
}

// brokers are the drains into a broker that answers each request in 10 ms.
func (s *drains) brokers() []trial {
	box := min(brokerBox, s.env.size.box)
	// The forwarder's batch is the library's default here: its first message waits for no large sort, and the broker is
	// what it waits for anyway.
	slowly := watermillForwarder{watermillSQL{batch: 100}}
	return []trial{
		{series: ofRelayBroker, drainer: millrace{}, events: s.rows, broker: brokerRequest, box: box},
		{series: ofForwarderBroker, drainer: slowly, events: s.rows, broker: brokerRequest, box: box},
	}
}

// peers are the drains of those that may not get through, and the articles' design over dead rows, a quarter as many
// because it takes long to bury them.
func (s *drains) peers() []trial {
	box := s.env.size.box
	trials := []trial{
		{series: ofSkipHeld, drainer: skipLocked{}, events: s.rows, buried: s.dead},
		{series: ofOagudo, drainer: oagudo{}, events: s.rows, box: box},
		{series: ofForwarder, drainer: watermillForwarder{fastWatermillSQL}, events: s.big, box: box},
		{series: ofWatermillBig, drainer: fastWatermillSQL, events: s.big, box: box},
	}
	if len(s.huge) > 0 {
		trials = append(trials,
			trial{series: ofRelayHuge, drainer: millrace{}, events: s.huge},
			trial{series: ofWatermillHuge, drainer: fastWatermillSQL, events: s.huge, box: box})
	}
	return trials
}

// add runs the trial and notes its rate.
func (s *drains) add(ctx context.Context, t trial) error {
	t.from = &s.depot
	o, err := t.run(ctx, s.dsn)
	if err != nil {
		return err
	}
	series := s.series[t.series]
	if series == nil {
		series = &rates{name: t.series, note: t.note()}
		s.series[t.series] = series
	}
	series.perRun = append(series.perRun, o.rate())
	through := ""
	if o.published < len(t.events) {
		through = fmt.Sprintf(" (%s rows in its time box)", thousands(float64(o.published)))
	}
	s.env.progress("  %-29s %9s rows/s%s", t.series, thousands(o.rate()), through)
	return nil
}

// addCost compares what a row of the usual backlog costs with one of a small backlog. What a relay needs to start and to
// stop is measured with a single event and taken off, or the small backlog would look dear and the large one cheap.
func (s *drains) addCost(ctx context.Context) error {
	took := func(events []event) (time.Duration, error) {
		o, err := trial{drainer: millrace{}, events: events, from: &s.depot}.run(ctx, s.dsn)
		return o.took, err
	}
	idle, err := took(s.small[:1])
	if err != nil {
		return err
	}
	small, err := took(s.small)
	if err != nil {
		return err
	}
	perRow := func(took time.Duration, rows int) float64 { return (took - idle).Seconds() / float64(rows-1) }
	relay := s.series[ofRelay].perRun
	large := time.Duration(float64(len(s.rows)) / relay[len(relay)-1] * float64(time.Second))
	s.cost.perRun = append(s.cost.perRun, perRow(large, len(s.rows))/perRow(small, len(s.small)))
	s.env.progress("  one event in %v, %d in %v, %d in %v", idle, len(s.small), small, len(s.rows), large)
	return nil
}

func (s *drains) report(facts []string) *report {
	r := &report{
		title: fmt.Sprintf("a backlog of %s events of 1 KB in %s keys, grown: %s, batches of %s, a publisher that does nothing",
			thousands(float64(len(s.rows))), thousands(keys), thousands(float64(len(s.big))), thousands(batchSize)),
		facts: facts,
		unit:  "rows/s",
	}
	told := map[string]bool{}
	of := func(name string) rates { return *s.series[name] }
	for _, name := range []string{
		ofRelay, ofSkip, ofSelect, ofForwarder, ofOagudo, ofRelayBig, ofWatermillBig, ofRelayHuge, ofWatermillHuge,
		ofRelayHeld, ofSkipHeld, ofRelayBroker, ofForwarderBroker, ofRelayLive, ofRelayBeside,
	} {
		if s.series[name] == nil {
			continue
		}
		one := of(name)
		if told[one.note] { // by an earlier line of the same contestant
			one.note = ""
		}
		told[one.note] = true
		r.rates = append(r.rates, one)
	}
	s.cost.name = "cost_large_vs_small"
	r.ratios = []ratios{
		against(of(ofRelay), of(ofSkip)),
		against(of(ofRelay), of(ofSelect)),
		ratio("vs_forwarder", of(ofRelayBig), of(ofForwarder)),
		ratio("vs_oagudo", of(ofRelay), of(ofOagudo)),
	}
	grown := "vs_watermill_sql"
	if len(s.huge) > 0 {
		r.ratios = append(r.ratios, ratio("vs_watermill_sql", of(ofRelayHuge), of(ofWatermillHuge)))
		grown = "vs_watermill_sql_200k"
	}
	r.ratios = append(r.ratios,
		ratio(grown, of(ofRelayBig), of(ofWatermillBig)),
		s.cost,
		ratio("slow_broker_vs_forwarder", of(ofRelayBroker), of(ofForwarderBroker)),
		ratio("held_xmin_vs_free", of(ofRelayHeld), of(ofRelayBig)),
		ratio("dead_topic_vs_without", of(ofRelayBeside), of(ofRelayLive)),
		ratio("skip_locked_held_vs_free", of(ofSkipHeld), of(ofSkip)),
	)
	return r
}
