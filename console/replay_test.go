package console_test

import (
	"context"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// many makes events of topic t dead.
func (s *site) many(n int) {
	s.fail()
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select 1, gen_random_uuid(), 'f' || i, '', 'dead', 3, 'attempts', 'no', '[]', 'h', 't', convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), ''::bytea from generate_series(1, $1) i`, n)
}

// tells waits until a page has the text.
func (s *site) tells(path, says string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(text(s.get(http.StatusOK, path)), says) }, time.Minute, 50*time.Millisecond, says)
}

// A replay keeps its pace, any session stops it and continues it at another pace, and its page and others tell how far it is.
func TestAReplayIsStoppedAndContinued(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(300)
	page := text(s.act(http.StatusOK, "/do/replay?topic=t", "rate", "1", "failed", "", "note", "deployed the fix"))
	assert.Contains(t, page, " of 300 replaying at most 1 per second")
	assert.Contains(t, page, "deployed the fix")
	assert.NotContains(t, page, "This console does not continue it.")
	s.comes(1, `select count(*) from {schema}.claim_replay where replayed > 0`)
	for _, path := range []string{"/", "/dead"} {
		assert.Regexp(t, `replaying Replay 1 by ada, \S+: deployed the fix \d+ of 300`, text(s.get(http.StatusOK, path)))
	}

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	other := *s
	other.client = &http.Client{Jar: jar}
	t.Cleanup(other.client.CloseIdleConnections)
	assert.Contains(t, text(other.get(http.StatusOK, "/do/stop?id=1")), "millrace dead stop --schema "+s.schema+" 1")
	stopped := text(other.act(http.StatusOK, "/do/stop?id=1", "note", "not everywhere"))
	assert.Contains(t, stopped, "of 300 stopped by ada")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/stop?id=1")), "It does not run: stopped.")
	assert.Contains(t, text(s.get(http.StatusOK, "/audit")), "ada stop replay replay 1 not everywhere")
	assert.NotContains(t, text(s.get(http.StatusOK, "/")), "Running replays")
	assert.Less(t, s.count(`select replayed from {schema}.claim_replay`), 100)

	assert.Contains(t, text(s.act(http.StatusBadRequest, "/do/continue?id=1", "rate", "fast")), `The number of events per second is "fast": want 1 to 1000000, or nothing for no limit.`)
	again := text(s.get(http.StatusOK, "/do/continue?id=1"))
	assert.Contains(t, again, "Continue replay 1?")
	assert.Contains(t, again, "millrace dead replay --resume 1 --rate 1 --max-failed 100")
	s.act(http.StatusOK, "/do/continue?id=1", "rate", "", "failed", "100")
	s.comes(1, `select count(*) from {schema}.claim_replay where state = 'done'`)
	s.tells("/replay?id=1", "300 of 300 done")
	assert.Contains(t, text(s.get(http.StatusOK, "/replay?id=1")), "handled 0 retrying 0 dead again 0 not tried yet 300 left out 0 to come 0")
	s.exec(`delete from {schema}.claim_failed where event_id in ('f1', 'f2')`)
	s.exec(`update {schema}.claim_failed set state = 'dead', attempts = 3 where event_id = 'f3'`)
	s.exec(`update {schema}.claim_failed set attempts = 1 where event_id = 'f4'`)
	s.tells("/replay?id=1", "handled 2 retrying 1 dead again 1 not tried yet 296 left out 0 to come 0")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/continue?id=1")), "It is done.")
	for _, path := range []string{"/replay?id=2", "/replay?id=x", "/replay", "/do/stop?id=2", "/do/continue?id="} {
		s.get(http.StatusNotFound, path)
	}
}

// Grace stopped a replay while Ada had the form for its pace open, and Ada's pace undid the stop.
func TestAChangeOfThePaceContinuesNoReplayThatWasStopped(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(300)
	s.archived("parcel.packed", 300)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected) select 'ada', '', '{"topic": "t", "states": ["dead"]}', 1, 1, max(id), 300 from {schema}.claim_failed`)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events) values ('ada', 'replay', 0)`)
	s.exec(`insert into {schema}.outbox_replay (id, until, published_at, rate, selected, more) values (1, now(), '-infinity', 1, 300, false)`)
	for path, sql := range map[string][3]string{
		"/do/continue":         {`update {schema}.claim_replay set state = 'stopped', reason = 'stopped by grace'`, `select count(*) from {schema}.claim_replay where state = 'running'`, `update {schema}.claim_replay set rate = 3`},
		"/do/archive-continue": {`update {schema}.outbox_replay set stopped_by = 'grace'`, `select count(*) from {schema}.outbox_replay where stopped_by is null`, `update {schema}.outbox_replay set rate = 3`},
	} {
		form := s.form(s.get(http.StatusOK, path+"?id=1"))
		s.exec(sql[0])
		form.Set("rate", "2")
		page := s.post(http.StatusConflict, path, form)
		assert.Contains(t, text(page), "The replay stopped meanwhile (by grace). Nothing was changed.")
		assert.Contains(t, text(page), "Continue replay 1")
		assert.Zero(t, s.count(sql[1]), path)
		stale := s.form(page)
		form = s.form(page)
		form.Set("rate", "1")
		s.post(http.StatusOK, path, form)
		assert.Equal(t, 1, s.count(sql[1]), path)
		form = s.form(s.get(http.StatusOK, path+"?id=1"))
		s.exec(sql[2])
		assert.Contains(t, text(s.post(http.StatusConflict, path, form)), "or changed its pace, meanwhile", "of two who change the pace, one is told")
		assert.Contains(t, text(s.post(http.StatusConflict, path, stale)), "Somebody has continued the replay, or changed its pace, meanwhile. Nothing was changed.")
	}
}

// A replay that ran for long was on no page any more when ten later ones had begun.
func TestARunningReplayIsListedBeforeLaterOnes(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected, state, ended_at) select 'ada', '', '{}', 1, 1, 100, 3, case n when 1 then 'running' else 'done' end, case when n > 1 then now() end from generate_series(1, 12) n`)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events) select 'ada', 'replay', 0 from generate_series(1, 24) n`)
	s.exec(`insert into {schema}.outbox_replay (id, until, published_at, rate, selected, more, stopped_by) select n, now(), '-infinity', 1, 10, false, case when n > 1 then 'grace' end from generate_series(1, 12) n`)
	page := text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "Replay 1 by ada")
	assert.Contains(t, page, "Replay 1 of the archive by ada")
	page = text(s.get(http.StatusOK, "/dead"))
	assert.Regexp(t, `Replay 1 by ada.* Replay 12 by ada.* Replay 4 by ada`, page)
	assert.NotContains(t, page, "Replay 3 by ada", "the number is bounded")
}

// With a guard a replay stands until consumers have tried what it has replayed, and says so; it stops when too much fails again.
func TestAReplayStopsWhenTooMuchFailsAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(60)
	assert.Contains(t, text(s.act(http.StatusBadRequest, "/do/replay?topic=t", "failed", "101")), `The percentage that may fail again is "101": want 0 to 100`)
	s.act(http.StatusOK, "/do/replay?topic=t", "rate", "", "failed", "5")
	s.comes(20, `select count(*) from {schema}.claim_failed where replayed`)
	s.tells("/replay?id=1", "It waits for consumers. 20 events")
	s.exec(`update {schema}.claim_failed set state = 'dead', attempts = 3 where replayed`)
	s.comes(1, `select count(*) from {schema}.claim_replay where state = 'stopped'`)
	s.tells("/replay?id=1", "20 of 60 stopped of 20 events that were tried 20 have failed again")
}

// A replay that nobody continues any more, because its process ended, is continued by a console when somebody asks for it.
func TestAReplayThatWasLeftIsContinued(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(30)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected, stepped_at)
		select 'grace', '', '{"topic": "t", "states": ["dead"]}', 0, 1, max(id), 30, now() - interval '3 hours' from {schema}.claim_failed`)
	page := text(s.get(http.StatusOK, "/replay?id=1"))
	assert.Contains(t, page, "This console does not continue it. It last replayed events 3h ago.")
	assert.Contains(t, page, "state dead topic t")
	s.act(http.StatusOK, "/do/continue?id=1")
	s.comes(1, `select count(*) from {schema}.claim_replay where state = 'done' and replayed = 30`)
}

// Who may look sees a replay, and cannot change it.
func TestReplaysNeedTheRightToAct(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.many(3)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected) values ('grace', '<b>', '{}', 0, 1, 100, 3)`)
	page := s.get(http.StatusOK, "/replay?id=1")
	assert.NotContains(t, page, "/do/")
	assert.NotContains(t, page, "<b>")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/stop?id=1")), "You may only look. Ask for the right to act.")
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_replay where state = 'running'`))
}

// A stop that came between the plan of a change of pace and the change itself was lost: the replay went on.
func TestAStopDuringAChangeOfThePaceLasts(t *testing.T) {
	t.Parallel()
	var s *site
	stop := map[string]string{}
	var using sync.Mutex
	s = open(t, everything, func(c *console.Config) {
		cfg := c.Databases[0].Pool.Config()
		schema := c.Databases[0].Schema
		others := c.Databases[0].Pool
		cfg.ConnConfig.Tracer = queryTracer(func(ctx context.Context, sql string) context.Context {
			using.Lock()
			defer using.Unlock()
			for statement, stopping := range stop { // just before the statement that changes the pace
				if strings.Contains(sql, statement) {
					delete(stop, statement)
					_, err := others.Exec(ctx, strings.ReplaceAll(stopping, "{schema}", schema))
					assert.NoError(t, err)
				}
			}
			return ctx
		})
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		c.Databases[0].Pool = pool
	})
	s.many(300)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected) select 'ada', '', '{"topic": "t", "states": ["dead"]}', 1, 1, max(id), 300 from {schema}.claim_failed`)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events) values ('ada', 'replay', 0)`)
	s.exec(`insert into {schema}.outbox_replay (id, until, published_at, rate, selected, more) values (1, now(), '-infinity', 1, 300, false)`)
	for path, c := range map[string][3]string{
		"/do/continue":         {`set state = 'running', reason = ''`, `update {schema}.claim_replay set state = 'stopped', reason = 'stopped by grace'`, `select count(*) from {schema}.claim_replay where state = 'running'`},
		"/do/archive-continue": {`set stopped_by = null, rate`, `update {schema}.outbox_replay set stopped_by = 'grace'`, `select count(*) from {schema}.outbox_replay where stopped_by is null`},
	} {
		form := s.form(s.get(http.StatusOK, path+"?id=1"))
		using.Lock()
		stop[c[0]] = c[1]
		using.Unlock()
		form.Set("rate", "2")
		page := text(s.post(http.StatusConflict, path, form))
		using.Lock()
		assert.Empty(t, stop)
		using.Unlock()
		assert.Contains(t, page, "It changed meanwhile: the replay stopped. Nothing was changed.", path)
		assert.Zero(t, s.count(c[2]), path)
	}
}
