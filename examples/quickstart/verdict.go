package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

// state is what the tables hold, read by SQL that shares no code with the services.
type state struct {
	completed, notified, thanked, outbox int
}

func readState(ctx context.Context, pool *pgxpool.Pool) (s state, err error) {
	err = pool.QueryRow(ctx, `select
		(select count(*) from labours where completed_at is not null),
		(select count(distinct labour_id) from notifications),
		(select count(*) from labours where thanks > 0),
		(select count(*) from outbox)`).Scan(&s.completed, &s.notified, &s.thanked, &s.outbox)
	return s, err
}

// verdict is the result for the labours that the database has as completed.
type verdict struct {
	committed     int
	notifications int
	thanks        int
	texts         int
	repeated      int // calls of the provider with a key that it already had
	incomplete    int // labours that were never completed, although the client repeats each request until it is answered
	unanswered    int // requests without an answer at the end
	lost          int // labours that lack an effect, or whose completion was answered although they are not completed
	doubled       int // labours with an effect that happened twice
	uncalled      int // labours with an effect that are not completed
}

// good reports whether every labour was completed, each effect happened once, and the client got every answer.
func (v verdict) good() bool { return v.incomplete+v.unanswered+v.lost+v.doubled+v.uncalled == 0 }

// judge reads the tables and the provider's texts.
func judge(ctx context.Context, pool *pgxpool.Pool, p *provider, events, answered int) (verdict, error) {
	texts, sent, repeated := p.sent()
	v := verdict{texts: sent, repeated: repeated}
	rows, err := pool.Query(ctx, `select id, completed_at is not null, thanks, (select count(*) from notifications where labour_id = id)
		from labours`)
	if err != nil {
		return v, err
	}
	var (
		id                    int64
		completed             bool
		thanks, notifications int
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &completed, &thanks, &notifications}, func() error {
		if !completed {
			if max(thanks, notifications, texts[id]) > 0 {
				v.uncalled++
			}
			return nil
		}
		v.committed++
		v.notifications += notifications
		v.thanks += thanks
		if min(thanks, notifications, texts[id]) < 1 {
			v.lost++
		}
		if max(thanks, notifications, texts[id]) > 1 {
			v.doubled++
		}
		return nil
	})
	v.lost += max(answered-v.committed, 0)
	v.incomplete = events - v.committed
	v.unanswered = events - answered
	return v, err
}

// report is everything that the final table shows.
type report struct {
	verdict
	cast     *stage.Cast
	services []string
	without  string
	colour   bool
}

// missing says what a run without a part has shown.
var missing = map[string]string{
	"claim":  "without the claim, effects happened more than once",
	"outbox": "without the outbox, events were lost",
}

func (r report) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-20s %s\n", name, fmt.Sprintf(format, args...))
	}
	kills := 0
	var byRole []string
	for _, role := range killedRoles {
		kills += r.cast.Kills[role]
		byRole = append(byRole, fmt.Sprintf("%s %d", role, r.cast.Kills[role]))
	}
	fmt.Fprintln(w)
	line("events committed", "%d", r.committed)
	line("requests repeated", "%d", r.cast.Counts.Get("retries"))
	line("deliveries", "%d", r.cast.Counts.Get("deliveries"))
	line("duplicates absorbed", "%d", r.cast.Counts.Get("duplicates"))
	line("contended", "%d (another consumer was handling the event)", r.cast.Counts.Get("contended"))
	line("kills", "%d (%s)", kills, strings.Join(byRole, ", "))
	line("effects", "%d notifications, %d texts, %d thanks", r.notifications, r.texts, r.thanks)
	line("repeated SMS calls", "%d (the provider knew their idempotency key)", r.repeated)
	line("lost", "%d (labours that lack an effect)", r.lost)
	line("doubled", "%d (labours with an effect more than once)", r.doubled)
	if r.incomplete > 0 {
		line("never completed", "%d labours", r.incomplete)
	}
	if r.unanswered > 0 {
		line("without an answer", "%d requests", r.unanswered)
	}
	if r.uncalled > 0 {
		line("without a cause", "%d labours have an effect and are not completed", r.uncalled)
	}
	for i, s := range r.services {
		line([]string{"services", ""}[min(i, 1)], "%s", s)
	}
	switch {
	case r.good():
		line("verdict", "%s", paint(r.colour, bold+";"+green, "every event took effect exactly once in the database"))
	case r.without != "" && r.incomplete+r.unanswered == 0:
		line("verdict", "%s", paint(r.colour, bold+";"+red, missing[r.without]))
	default:
		line("verdict", "%s", paint(r.colour, bold+";"+red, "FAILED"))
	}
}
