package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
)

// The processes of the system are the tests' program.
func TestMain(m *testing.M) {
	if Playing() {
		os.Exit(Play())
	}
	if play := testRoles[role.Name()]; play != nil {
		os.Exit(role.Play(play))
	}
	devtest.Main(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const seed = 22

func TestScheduleIsThatOfItsSeed(t *testing.T) {
	t.Parallel()
	kinds := kindsOn(Kafka)
	once := newSchedule(seed, 10*time.Minute, kinds)
	assert.Equal(t, once, newSchedule(seed, 10*time.Minute, kinds))
	assert.NotEqual(t, once, newSchedule(seed+1, 10*time.Minute, kinds))
	assert.GreaterOrEqual(t, len(once), 200)
	for _, duration := range []time.Duration{time.Second, time.Minute} {
		came := map[string]bool{}
		for _, f := range newSchedule(seed, duration, kinds) {
			came[f.Kind] = true
			assert.Less(t, f.At, duration+time.Second)
		}
		assert.Len(t, came, len(kinds))
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Config{Broker: "rabbit", Without: "luck", Kinds: []string{"flood"}, Out: io.Discard})
	require.ErrorContains(t, err, `-broker is "rabbit": want pubsub or kafka`)
	require.ErrorContains(t, err, `-duration is 0s: want 1s to 24h`)
	require.ErrorContains(t, err, `-without is "luck": want one of [key`)
	require.ErrorContains(t, err, `-kinds has "flood"`)
	_, err = Run(t.Context(), Config{Broker: PubSub, Duration: time.Minute, Kinds: []string{"kill broker"}, Out: io.Discard})
	require.ErrorContains(t, err, "no kind of fault for pubsub")
	_, err = Matrix(t.Context(), Config{Broker: PubSub, Duration: time.Minute, Without: "luck", Out: io.Discard}, io.Discard)
	require.ErrorContains(t, err, `-without is "luck"`)
}

// A run in which nothing was found is not good when it could have found nothing.
func TestFlawedRunIsNotGood(t *testing.T) {
	t.Parallel()
	done, failed := happened{fault: fault{Kind: "kill relay"}}, happened{fault: fault{Kind: "end backends"}, Error: "no connection"}
	right := func() *Result {
		return &Result{
			Kinds:    []kind{{name: "kill relay"}, {name: "end backends"}},
			Faults:   []happened{done, failed, {fault: failed.fault}}, // one of a kind is enough
			Restarts: []restart{{Process: "relay 0", Excuse: inVain, Error: "exit status 2"}},
			Counts:   counts{Orders: 3, Judged: 3},
		}
	}
	assert.Empty(t, right().Flaws())
	assert.True(t, right().Good())
	for want, spoil := range map[string]func(*Result){
		`no fault "end backends" was done`: func(r *Result) { r.Faults = []happened{done, failed, failed} },
		`no fault "kill relay" was done`:   func(r *Result) { r.Faults = []happened{{fault: failed.fault}} },
		"relay 1 ended by itself, or badly: exit status 2 (5.0 s after the beginning)": func(r *Result) {
			r.Restarts = []restart{{At: r.Began.Add(5 * time.Second), Process: "relay 1", Error: "exit status 2"}}
		},
		"the auditor has seen the place of 2 orders, of 3": func(r *Result) { r.Counts.Judged = 2 },
		"the auditor has seen the place of 0 orders, of 0": func(r *Result) { r.Counts = counts{} },
	} {
		r := right()
		spoil(r)
		assert.Equal(t, []string{want}, r.Flaws())
		assert.False(t, r.Good(), want)
		var text, line bytes.Buffer
		require.NoError(t, r.Write(&text))
		assert.Contains(t, text.String(), want+"\n")
		require.NoError(t, r.WriteJSON(&line))
		assert.Contains(t, line.String(), `"good":false,"flaws":[`)
	}
}

func TestObserverJudgesEveryOrder(t *testing.T) {
	t.Parallel()
	o := &observer{seen: map[string]bool{}, last: map[string]int64{}}
	for _, one := range []order{{ID: "1", Account: "a", Version: 1}, {ID: "3", Account: "a", Version: 3}, {ID: "1", Account: "a", Version: 1}, {ID: "b", Account: "b", Version: 1}} {
		o.see(one, time.Now())
	}
	assert.Empty(t, o.findings(), "an order that comes again overtakes nobody")
	assert.Equal(t, 3, o.judged())
	o.see(order{ID: "2", Account: "a", Version: 2}, time.Now())
	assert.Equal(t, 4, o.judged())
	require.Len(t, o.findings(), 1)
	assert.Equal(t, "order 2 of a was published as number 2 after number 3", o.findings()[0].What)
	whole := counts{Sent: 4, Answered: 4, Orders: 4, Shipments: 4, Notices: 4, Charges: 4, Judged: 4}
	assert.True(t, whole.complete())
	whole.Judged = 3
	assert.False(t, whole.complete(), "the run waits for the observer")
}

// testRoles are processes that end as those of the system should not.
var testRoles = map[string]func(ctx context.Context, cfg config, told <-chan string) error{
	"diligent": func(ctx context.Context, _ config, _ <-chan string) error {
		fmt.Println("it works")
		<-ctx.Done()
		return nil
	},
	"leaver": func(ctx context.Context, _ config, told <-chan string) error {
		fmt.Println("it works")
		select {
		case <-told:
		case <-ctx.Done():
		}
		return nil
	},
	"careless": func(ctx context.Context, _ config, _ <-chan string) error {
		fmt.Println("it works")
		<-ctx.Done()
		return errors.New("something is left")
	},
	"beginner": func(context.Context, config, <-chan string) error { return errors.New("PostgreSQL is away") },
}

func TestEndsAreCounted(t *testing.T) {
	t.Parallel()
	tell := func(ctx context.Context, one *child) error { return one.tell(ctx, tellHold, 0) }
	replace := func(ctx context.Context, one *child) error { return one.replace(ctx) }
	for name, test := range map[string]struct {
		role    string
		befalls func(ctx context.Context, one *child) error
		want    []restart
	}{
		"killed":          {"diligent", func(ctx context.Context, one *child) error { return one.kill(ctx) }, nil},
		"replaced":        {"diligent", replace, nil},
		"left":            {"leaver", tell, []restart{{Process: "leaver 0", Error: "exit status 0"}}},
		"replaced badly":  {"careless", replace, []restart{{Process: "careless 0", Excuse: noClean, Error: "exit status 2"}}},
		"started in vain": {"beginner", func(context.Context, *child) error { return nil }, []restart{{Process: "beginner 0", Excuse: inVain, Error: "exit status 2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := &child{role: test.role}
			c := &cast{logs: io.Discard, children: []*child{one}}
			c.ctx, c.stop = context.WithCancel(t.Context())
			defer c.stop()
			c.running.Go(func() { c.once(one) })
			require.NoError(t, test.befalls(c.ctx, one))
			c.running.Wait()
			got := c.restarts()
			for i := range got {
				assert.WithinDuration(t, time.Now(), got[i].At, time.Minute)
				got[i].At = time.Time{}
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// planted is one wrong of each class, and a right order beside them.
const planted = `
insert into orders (id, event_id, client_key, account, version) values
	('00000000-0000-0000-0000-000000000001', 'e1', 'right', 'a', 1),
	('00000000-0000-0000-0000-000000000002', 'e2', 'twice', 'a', 2),
	('00000000-0000-0000-0000-000000000003', 'e3', 'twice', 'a', 3),
	('00000000-0000-0000-0000-000000000004', 'e4', 'unshipped', 'b', 1),
	('00000000-0000-0000-0000-000000000005', 'e5', 'held', 'c', 1);
insert into shipments (order_id, event_id, account, version) values
	('00000000-0000-0000-0000-000000000001', 'f1', 'a', 1),
	('00000000-0000-0000-0000-000000000003', 'f3', 'a', 3),
	('00000000-0000-0000-0000-000000000002', 'f2', 'a', 2),
	('00000000-0000-0000-0000-000000000002', 'f2', 'a', 2),
	('00000000-0000-0000-0000-000000000009', 'f9', 'd', 1);
insert into notices (order_id, account, version) values
	('00000000-0000-0000-0000-000000000001', 'a', 1),
	('00000000-0000-0000-0000-000000000002', 'a', 2),
	('00000000-0000-0000-0000-000000000003', 'a', 3);
insert into chaos.outbox (shard, seq, event_id, topic, key, headers, payload) values (0, 1, 'e5', 'order.placed', 'c', '', '');
insert into chaos.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state)
	values (1, 0, 2, 'e6', 'order.placed', 'c', '', '', now(), 'dead');
insert into chaos.effect (created_at, key, state, token, calls, first_called_at, called_at, until)
	values (now(), 'charge', 'doubt', gen_random_uuid(), 1, now(), now(), now());`

func TestAuditorFindsEachClass(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	provider, err := startProvider()
	require.NoError(t, err)
	defer func() { assert.NoError(t, provider.stop()) }()
	s := &system{stack: &stack{server: server, pool: devtest.PoolOn(t, server.DSN())}, driver: newDriver(nil), provider: provider}
	require.NoError(t, s.migrate(t.Context()))
	_, err = s.pool.Exec(t.Context(), `create table chaos.effect_day partition of chaos.effect default;`+planted)
	require.NoError(t, err)
	for key, id := range map[string]string{"right": "00000000-0000-0000-0000-000000000001", "vanished": "00000000-0000-0000-0000-000000000008"} {
		s.driver.sent[key], s.driver.answers[key] = time.Now(), id
	}
	s.driver.sent["unanswered"] = time.Now()
	for _, id := range []string{"1", "3", "5", "5"} {
		provider.book("00000000-0000-0000-0000-00000000000"+id, "")
	}
	found, err := s.audit(t.Context(), true)
	require.NoError(t, err)
	r := &Result{Config: Config{Broker: Kafka}, Kinds: allKinds, Began: time.Now(), Ended: time.Now(), Findings: found}
	said := map[string][]string{}
	for _, f := range found {
		said[f.Class] = append(said[f.Class], f.What)
	}
	const id = "order 00000000-0000-0000-0000-00000000000"
	for class, want := range map[string][]string{
		lost:      {id + "4 was not shipped", id + "9 was not told of", id + "2 was told of and not charged", "key vanished was answered with " + id + "8, which does not exist"},
		doubled:   {"key twice made 2 orders", id + "2 was shipped 2 times", id + "5 was charged 2 times"},
		invented:  {id + "9 was shipped and does not exist"},
		overtaken: {id + "2 of a came as number 2 after number 3 in shipments"},
		inDoubt:   {"effect charge is doubt: "},
		stuck:     {id + "5 was not shipped, and is held", "event e5 is still in the outbox", "key unanswered has no answer"},
		accused:   {"event e6 is dead in the outbox: "},
	} {
		assert.ElementsMatch(t, want, said[class], class)
		assert.Equal(t, len(want), r.Count(class))
	}
	assert.False(t, r.Good())
	checkOutputs(t, r)
}

func checkOutputs(t *testing.T, r *Result) {
	t.Helper()
	var text, line, drawing bytes.Buffer
	require.NoError(t, r.Write(&text))
	assert.Contains(t, text.String(), "lost 4, doubled 3, invented 1, overtaken 1, in doubt 1, stuck 3, accused 1")
	require.NoError(t, r.WriteJSON(&line))
	var got struct {
		Good  bool
		Found map[string]int
		Table []json.RawMessage
	}
	require.NoError(t, json.Unmarshal(line.Bytes(), &got))
	assert.False(t, got.Good)
	assert.Equal(t, 4, got.Found[lost])
	assert.Len(t, got.Table, len(allKinds))
	require.NoError(t, r.WriteSVG(&drawing))
	decoder := xml.NewDecoder(&drawing)
	for elements := 0; ; elements++ {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			assert.Greater(t, elements, len(allKinds))
			return
		}
		require.NoError(t, err)
	}
}
