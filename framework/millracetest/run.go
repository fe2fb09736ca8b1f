package millracetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// deliveries bounds how often the event is delivered after a fault.
const deliveries = 8

var onlyPoint = flag.Int("millracetest.point", 0, "attack handlers at this point alone, as a failure of millracetest.Run names it")

// Option changes what Run does.
type Option func(*options)

type options struct {
	tables   string
	handler  string
	point    int
	ignored  map[string]bool
	provider http.Handler
	config   []func(*framework.Config)
}

// Tables sets the statements that make the handler's tables and their first rows, such as an embedded schema.sql. They are
// executed in an empty database before each point.
func Tables(sql string) Option { return func(o *options) { o.tables += sql + "\n;" } }

// Handler names the handler to attack, if the function given to Run adds several.
func Handler(name string) Option { return func(o *options) { o.handler = name } }

// Point attacks only the point with this number, which a failure names. The flag -millracetest.point does the same.
func Point(n int) Option { return func(o *options) { o.point = n } }

// Ignore names columns that may differ, as "table.column", and fields of events' payloads, as "topic.field": for example a time
// of writing. Two kinds of columns are never compared: those with defaults of the database (sequences, now(), random IDs), and
// foreign keys to them.
func Ignore(columns ...string) Option {
	return func(o *options) {
		for _, column := range columns {
			o.ignored[column] = true
		}
	}
}

// Provider answers the requests of Process.HTTP, for all hosts. Default: each is answered by 200 and {}.
func Provider(h http.Handler) Option { return func(o *options) { o.provider = h } }

// Config changes the configuration of the service, for example to make the claim lazy.
func Config(change func(*framework.Config)) Option {
	return func(o *options) { o.config = append(o.config, change) }
}

// attack is one call of Run.
type attack struct {
	database

	name      string // of the test
	setup     func(*Process) error
	event     *message.Message
	options   options
	world     *recorder
	processes []*Process        // in the current run of the handler
	spare     chan assembled    // the next process
	responses map[string][]byte // recorded by the ledger in the run without a fault

	ending sync.WaitGroup // ends dead processes in the background
	mu     sync.Mutex
	ended  error // errors of ending dead processes
}

// outcome is the result of a run.
type outcome struct {
	tables  snapshot
	effects map[string]int
	world   *recorder
	trace   []statement
}

// Run attacks the handler that setup adds to the process's service, at every point, and fails the test at the first point where
// the outcome differs from that without a fault. setup is called for each process of the test. It must do the same as the
// service's own start, and must keep nothing that a restarted process would not have. The event is what the handler gets, with
// its ID: see framework.TopicOf.Message.
//
// The handler must send the same statements each time, if tables and answers are the same. Run creates a database of its own on
// the PostgreSQL of package devtest, and may be called in parallel tests.
func Run(t testing.TB, setup func(p *Process) error, event *message.Message, opts ...Option) {
	t.Helper()
	o := options{ignored: map[string]bool{}, provider: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}")
	})}
	for _, opt := range opts {
		opt(&o)
	}
	if o.point == 0 {
		o.point = *onlyPoint
	}
	if event == nil || event.UUID == "" {
		t.Fatalf("millracetest: the event has no ID: make it with the Message of its topic")
		return
	}
	pool := devtest.PoolOn(t, devtest.Database(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 2 })
	a := &attack{database: database{admin: pool, tables: o.tables, ignored: o.ignored}, setup: setup, event: event, options: o, name: t.Name()}
	if failure := errors.Join(a.run(t.Context()), a.close()); failure != nil {
		t.Errorf("millracetest: %v", failure)
	}
}

// run runs all points, and returns the first failure.
func (a *attack) run(ctx context.Context) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	before, err := a.undisturbed(ctx)
	if err != nil {
		return err
	}
	points := faults(before.trace, before.world.calls)
	if a.options.point > len(points) {
		return fmt.Errorf("there is no point %d: want one from 1 to %d", a.options.point, len(points))
	}
	for i, f := range points {
		if n := a.options.point; n != 0 && n != i+1 {
			continue
		}
		where := fmt.Sprintf("point %d of %d: %s", i+1, len(points), f.text)
		after, err := a.play(ctx, f)
		if err == nil {
			err = a.difference(before, after, f)
		}
		if err != nil {
			return fmt.Errorf("%s:\n    %w\nrepeat it alone: go test -run '%s' -millracetest.point %d", where, err, pattern(a.name), i+1)
		}
	}
	return nil
}

// pattern returns the argument of go test -run that runs only this test, to be put in single quotes.
func pattern(name string) string {
	return "^" + strings.NewReplacer("/", "$/^", "'", ".").Replace(regexp.QuoteMeta(name)) + "$"
}

// undisturbed handles the event without a fault, until two runs have the same number of statements. A difference between these
// runs is not due to a fault.
func (a *attack) undisturbed(ctx context.Context) (outcome, error) {
	before, err := a.play(ctx, fault{})
	if err != nil {
		return before, fmt.Errorf("without a fault: %w", err)
	}
	if a.responses, err = a.recorded(ctx); err != nil {
		return before, err
	}
	for try := 1; ; try++ {
		again, err := a.play(ctx, fault{})
		if err == nil {
			err = a.difference(before, again, fault{})
		}
		if err == nil && len(before.trace) != len(again.trace) {
			if try < undisturbedTries { // the service's background work may add statements on a busy machine
				before = again
				continue
			}
			err = fmt.Errorf("the handler sends %d statements, and at the next try %d: the kit needs a handler that sends the same ones for the same event", len(before.trace), len(again.trace))
		}
		if err != nil {
			return before, fmt.Errorf("twice without a fault, each time on the same tables:\n    %w", err)
		}
		return before, nil
	}
}

// undisturbedTries bounds how often undisturbed repeats the run.
const undisturbedTries = 8

// play handles the event on fresh tables, with one fault.
func (a *attack) play(ctx context.Context, f fault) (o outcome, err error) {
	if err := a.reset(ctx); err != nil {
		return o, err
	}
	a.world = &recorder{answers: map[string]*httptest.ResponseRecorder{}}
	a.processes = nil
	defer func() { err = errors.Join(err, a.end(context.WithoutCancel(ctx))) }()
	p, err := a.start(ctx, f)
	if err != nil {
		return o, err
	}
	switch f.kind {
	case overtaken, suspended:
		err = a.beside(ctx, p, f)
	default:
		err = a.alone(ctx, p, f)
	}
	if err != nil {
		return o, err
	}
	o = outcome{effects: a.world.effects(), world: a.world, trace: p.statements()}
	o.tables, err = a.read(ctx)
	return o, err
}

// alone handles the event in one process at a time.
func (a *attack) alone(ctx context.Context, p *Process, f fault) error {
	acked, err := p.deliver(1)
	switch {
	case err != nil:
		return err
	case f.kind == nothing && !acked:
		return fmt.Errorf("the handler fails%s: %w", p.lastLine(), p.failure())
	case f.kind == nothing && p.errors.String() != "":
		return fmt.Errorf("the service logs an error%s: %s", p.lastLine(), p.errors)
	case (f.statement != 0 || f.call != 0) && !p.proxy.isStruck():
		return errUnreached
	case f.kind == diesBeforeAck:
		p.proxy.kill()
		acked = false
	case f.kind == twice:
		acked = false
	}
	if acked {
		return nil
	}
	return a.insist(ctx, p)
}

var errUnreached = errors.New("the handler did not come that far: the kit needs a handler that sends the same statements for the same event")

// insist delivers the event until it is acked. It starts a new process if p is dead.
func (a *attack) insist(ctx context.Context, p *Process) (err error) {
	for n := range deliveries {
		if p.proxy.isDead() {
			if p, err = a.start(ctx, fault{kind: repaired}); err != nil {
				return err
			}
		}
		if err := a.notice(ctx); err != nil {
			return err
		}
		if n >= 2 { // the handler has had its chance to settle effects in doubt
			if err := a.resolve(ctx, a.world.happened, a.responses); err != nil {
				return err
			}
		}
		if acked, err := p.deliver(n + 2); acked || err != nil {
			return err
		}
	}
	return fmt.Errorf("the event was nacked %d times after the fault, at last because: %w", deliveries, p.failure())
}

// notice makes the server end the sessions of cut connections.
func (a *attack) notice(ctx context.Context) error {
	var lost []uint32
	for _, p := range a.processes {
		lost = append(lost, p.proxy.takeLost()...)
	}
	return a.forget(ctx, lost)
}

// beside handles the event in a second process while the first one is paused before a statement.
func (a *attack) beside(ctx context.Context, first *Process, f fault) error {
	second, err := a.start(ctx, fault{kind: repaired})
	if err != nil {
		return err
	}
	type result struct {
		acked bool
		err   error
	}
	deliver := func(p *Process) chan result {
		done := make(chan result, 1)
		go func() {
			acked, err := p.deliver(1)
			done <- result{acked, err}
		}()
		return done
	}
	ones := deliver(first)
	defer first.proxy.resume()
	select {
	case <-first.proxy.paused:
	case r := <-ones:
		return errors.Join(r.err, errUnreached)
	}
	if f.kind == suspended {
		first.proxy.sever()
		if err := a.insist(ctx, second); err != nil {
			return fmt.Errorf("in the second process: %w", err)
		}
		first.proxy.resume()
		r := <-ones
		if r.acked || r.err != nil {
			return r.err
		}
		return a.insist(ctx, first)
	}
	others := deliver(second)
	var r result
	select {
	case r = <-others:
		others = nil
	case <-time.After(300 * time.Millisecond): // the second process waits for a lock of the first
	}
	first.proxy.resume()
	one := <-ones
	if others != nil {
		r = <-others
	}
	if err := errors.Join(one.err, r.err); err != nil {
		return err
	}
	for p, acked := range map[*Process]bool{first: one.acked, second: r.acked} {
		if !acked {
			if err := a.insist(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// end kills the processes of a run. They may continue beside the next run, but without any connection.
func (a *attack) end(ctx context.Context) error {
	for _, p := range a.processes {
		p.proxy.kill()
		a.bury(p)
	}
	return a.notice(ctx)
}

// bury waits in the background until a dead process has ended.
func (a *attack) bury(p *Process) {
	a.ending.Go(func() {
		err := p.end()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ended = errors.Join(a.ended, err)
	})
}

// close waits until all processes have ended.
func (a *attack) close() error {
	if a.spare != nil {
		if next := <-a.spare; next.p != nil {
			next.p.proxy.kill()
			a.bury(next.p)
		}
	}
	a.ending.Wait()
	return a.ended
}

// difference describes the first difference between two outcomes, with the line that caused it.
func (a *attack) difference(before, after outcome, f fault) error {
	unprovoked := f.kind == nothing
	for _, what := range slices.Sorted(maps.Keys(union(before.effects, after.effects))) {
		was, is := before.effects[what], after.effects[what]
		if was == is {
			continue
		}
		c, ok := after.world.last(what)
		if !ok {
			c, _ = before.world.last(what)
		}
		return fmt.Errorf("%s%s happened %s, and without a fault %s: %s", prefix(c.line), what, times(is), times(was), advice(c, is < was, unprovoked))
	}
	c, differs := compare(before.tables, after.tables)
	if !differs {
		return nil
	}
	text := fmt.Sprintf("%s: %s, and without a fault %s", c.name, list(c.more), list(c.fewer))
	if unprovoked {
		text = fmt.Sprintf("%s: %s, and before %s\n    A value is another one at each try: make it of the event, or name its column with the option Ignore", c.name, list(c.more), list(c.fewer))
	}
	s, outside := blamed(before.trace, c.name)
	switch {
	case f.kind == fails:
		s = before.trace[f.statement-1]
		text += "\n    The handler must return the error of this statement: " + short(s.sql)
	case s.line == "":
		return errors.New(text)
	case outside && !unprovoked:
		text += fmt.Sprintf("\n    This statement is outside of the claim's transaction: %s\n    Use the transaction of the handler's context: pgtx.From or pgtx.Queue, and Publish with that context", short(s.sql))
	default:
		text += "\n    The statement is " + short(s.sql)
	}
	return errors.New(prefix(s.line) + text)
}

func advice(c call, lost, unprovoked bool) string {
	switch {
	case unprovoked:
		return "its content is another one at each try: make it of the event"
	case lost:
		return "it is lost: the handler must return its error, and must not leave it for after the commit"
	case c.ledger:
		return "it went through the ledger with another key or idempotency key at each try: make the key of the event's ID"
	}
	return "the call is outside of the ledger: make it in effect.Once, or with an idempotency key of the event's that the provider honours"
}

// blamed returns the statement that probably wrote to the table or published the events, and whether it is outside of the claim's
// transaction.
func blamed(trace []statement, name string) (found statement, outside bool) {
	table, ok := strings.CutPrefix(name, "table ")
	if !ok {
		table = "outbox"
	}
	named := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(table) + `\b`)
	for _, s := range trace {
		if s.line == "" || s.ledger || !named.MatchString(s.sql) || s.word() == "select" && !outside && found.line != "" {
			continue
		}
		if s.link != trace[0].link && s.word() != "select" {
			return s, true
		}
		found = s
	}
	return found, false
}

func prefix(line string) string {
	if line == "" {
		return ""
	}
	return line + ": "
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// list joins rows for a message.
func list(rows []string) string {
	if len(rows) == 0 {
		return "no such row"
	}
	if len(rows) > 3 {
		return strings.Join(rows[:3], ", ") + fmt.Sprintf(" and %d more", len(rows)-3)
	}
	return strings.Join(rows, ", ")
}

func union(a, b map[string]int) map[string]int {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// statements returns the statements of the process. All statements on a connection of the ledger count as the ledger's.
func (p *Process) statements() []statement {
	p.proxy.mu.Lock()
	defer p.proxy.mu.Unlock()
	trace := slices.Clone(p.proxy.trace)
	ledgers := map[int]bool{}
	for _, s := range trace {
		ledgers[s.link] = ledgers[s.link] || s.ledger
	}
	for i := range trace {
		trace[i].ledger = ledgers[trace[i].link]
	}
	return trace
}

// lastLine returns the handler's line that sent the last statement.
func (p *Process) lastLine() string {
	for _, s := range slices.Backward(p.statements()) {
		if s.line != "" {
			return " behind " + s.line
		}
	}
	return ""
}
