package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
)

// systemTest is one of Apache Kafka's tests in one of its variants.
type systemTest struct {
	title   string
	in, out int32 // partitions of the topics
	copiers int
	static  bool // the copiers are static members of their group
	ordered bool // the order within each partition is part of the verdict
	bounced string
	clean   bool // bounced by SIGTERM or a request, not by SIGKILL
}

const (
	brokers   = "brokers"
	processes = "copiers"
)

func (t systemTest) name() string {
	how := "hard"
	if t.clean {
		how = "clean"
	}
	return fmt.Sprintf("%s, %s bounce of %s", t.title, how, t.bounced)
}

// chosen returns the tests whose names match.
func chosen(pattern *regexp.Regexp) []systemTest {
	var tests []systemTest
	for _, t := range []systemTest{
		// In Apache Kafka's test each copier has its partition for good; static members come closest to that.
		{title: "transactions", in: 2, out: 3, copiers: 2, static: true},
		{title: "group mode", in: 9, out: 9, copiers: 3, ordered: true},
	} {
		for _, t.bounced = range []string{brokers, processes} {
			for _, t.clean = range []bool{true, false} {
				if pattern.MatchString(t.name()) {
					tests = append(tests, t)
				}
			}
		}
	}
	return tests
}

// stall is how long nothing may be copied before what is missing counts as lost. A killed member's partitions move after
// 6 seconds.
const stall = time.Minute

// trial is a running test.
type trial struct {
	systemTest
	cluster       *devstack.KafkaCluster
	admin         *kadm.Client
	input, output string
	group         string
	messages      int
	cast          *cast
	reader        *reader // concurrent
	began         time.Time
	stderr        io.Writer
}

func (t systemTest) run(ctx context.Context, cluster *devstack.KafkaCluster, o options, stderr io.Writer) (v verdict, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers()...))
	if err != nil {
		return v, err
	}
	defer client.Close()
	id := uuid.NewString()[:8]
	r := &trial{
		systemTest: t, cluster: cluster, admin: kadm.NewClient(client), messages: o.messages,
		input: "input-" + id, output: "output-" + id, group: "copiers-" + id, began: time.Now(), stderr: stderr,
	}
	r.say("%s: %d messages, %d → %d partitions, %d %s copiers", t.name(), o.messages, t.in, t.out, t.copiers, o.delivery)
	if err := r.createTopics(ctx); err != nil {
		return v, err
	}
	if err := seed(ctx, cluster.Brokers(), r.input, t.in, o.messages); err != nil {
		return v, err
	}
	if r.reader, err = startReader(cluster.Brokers(), r.output); err != nil {
		return v, err
	}
	defer r.reader.stop()
	r.cast = r.newCast(o)
	defer r.cast.kill()
	return r.play(ctx)
}

func (r *trial) createTopics(ctx context.Context) error {
	for topic, partitions := range map[string]int32{r.input: r.in, r.output: r.out} {
		created, err := r.admin.CreateTopic(ctx, partitions, -1, nil, topic)
		if err = errors.Join(err, created.Err); err != nil {
			return fmt.Errorf("create the topic %s: %w", topic, err)
		}
	}
	return r.cluster.AwaitInSync(ctx)
}

// play bounces while the copiers copy, lets them finish, stops them and judges.
func (r *trial) play(ctx context.Context) (v verdict, err error) {
	if err := r.cast.start(); err != nil {
		return v, err
	}
	bounce := r.bounceCopiers
	if r.bounced == brokers {
		bounce = r.bounceBrokers
	}
	if err := bounce(ctx); err != nil {
		return v, err
	}
	r.cast.tell(hurry)
	if err := r.await(ctx, "everything is committed", r.committed); err != nil {
		return v, err
	}
	unclean := r.cast.stop()
	// The transaction of a copier that was killed holds readers back until the brokers abort it.
	if err := r.await(ctx, "no transaction is open", r.closed); err != nil {
		return v, err
	}
	marks, err := r.ends(ctx)
	if err != nil {
		return v, err
	}
	if err := r.await(ctx, "the concurrent reader is at the end", func(context.Context) (bool, error) { return r.reader.reached(marks), nil }); err != nil {
		return v, err
	}
	input, err := readAll(ctx, r.admin, r.cluster.Brokers(), r.input)
	if err != nil {
		return v, err
	}
	output, err := readAll(ctx, r.admin, r.cluster.Brokers(), r.output)
	if err != nil {
		return v, err
	}
	v = judge(input.records, output.records, r.reader.read().records, r.ordered)
	v.commits, v.aborts, v.unclean, v.took = output.commits, output.aborts, unclean, time.Since(r.began)
	v.hanging, err = r.hanging(ctx)
	return v, err
}

// await returns once done says so, or, as the verdict will tell what is missing, once nothing was copied for long.
func (r *trial) await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	moved, last := time.Now(), -1
	return poll(ctx, func() (bool, error) {
		if count := r.reader.count(); count != last {
			moved, last = time.Now(), count
		}
		if time.Since(moved) > stall {
			r.say("nothing was copied for %v: no longer waiting until %s", stall, what)
			return true, nil
		}
		if err := r.cast.failure(); err != nil {
			return false, err
		}
		ok, err := done(ctx)
		return ok && err == nil, nil // brokers that are down answer later
	})
}

// poll calls done again and again until it reports true or an error.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// committed reports whether the group's offsets are at the end of the input.
func (r *trial) committed(ctx context.Context) (bool, error) {
	ends, err := r.admin.ListEndOffsets(ctx, r.input)
	if err != nil {
		return false, err
	}
	offsets, err := r.admin.FetchOffsetsForTopics(ctx, r.group, r.input)
	if err != nil {
		return false, err
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		offset, ok := offsets.Lookup(end.Topic, end.Partition)
		all = all && ok && offset.At >= end.Offset
	})
	return all, errors.Join(ends.Error(), offsets.Error())
}

// ends returns the last stable offsets of the output.
func (r *trial) ends(ctx context.Context) (map[int32]int64, error) {
	offsets, err := r.admin.ListCommittedOffsets(ctx, r.output)
	if err = errors.Join(err, offsets.Error()); err != nil {
		return nil, fmt.Errorf("ask for the end of %s: %w", r.output, err)
	}
	ends := map[int32]int64{}
	offsets.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends, nil
}

// hanging counts what a transaction that nobody ended holds back: offsets between the last stable one and the end.
func (r *trial) hanging(ctx context.Context) (int64, error) {
	stable, err := r.ends(ctx)
	if err != nil {
		return 0, err
	}
	ends, err := r.admin.ListEndOffsets(ctx, r.output)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, err
	}
	held := int64(0)
	ends.Each(func(o kadm.ListedOffset) { held += o.Offset - stable[o.Partition] })
	return held, nil
}

func (r *trial) closed(ctx context.Context) (bool, error) {
	held, err := r.hanging(ctx)
	return held == 0, err
}

// say tells what happens, with the time and how far the copying is.
func (r *trial) say(format string, args ...any) {
	progress := ""
	if r.reader != nil {
		progress = fmt.Sprintf("%3d %%  ", 100*r.reader.count()/r.messages)
	}
	fmt.Fprintf(r.stderr, "%6.1f s  %s%s\n", time.Since(r.began).Seconds(), progress, fmt.Sprintf(format, args...))
}
