package stage

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// stall is how long nothing may change before what is missing counts as lost. The messages of a killed consumer are redelivered
	// sooner, although Google's emulator may first send them to another dead one.
	stall = 7 * ackDeadline
	// lostStall is the same for a run that loses something on purpose.
	lostStall = 3 * ackDeadline
	// shortStall is the same while clients wait for answers, which need no redelivery.
	shortStall = 3 * ackDeadline / 2

	quiet = 2 * time.Second // without a delivery, before the end
	told  = 2 * time.Second // between two lines
	// tarry is how long a kill waits for its moment: until something has changed since the last kill, on slow machines too, and until
	// Moment returns true.
	tarry = 30 * time.Second
)

// Watching configures Watch.
type Watching struct {
	Kills int
	Roles []string      // killed in turn
	Span  time.Duration // over which the kills are spread
	// Moment reports whether a kill would be hard now. nil: any time.
	Moment func() bool
	// Act is what the clients do meanwhile. nil: nothing.
	Act func(ctx context.Context) error
	// State returns the progress, and whether everything is there.
	State func(ctx context.Context) (line string, all bool, err error)
	// Loses means that a part is left out whose absence loses something.
	Loses bool
	// Progress shows the progress. nil: as lines, for a cast of Stage.NewCast.
	Progress Progress
}

// Progress shows a person the progress.
type Progress interface {
	Show(line string, killed int) // called repeatedly
	Done(line, note string)
}

// printed shows progress as lines.
type printed struct {
	out    io.Writer
	w      Watching
	at     time.Time
	line   string
	killed int
}

func (p *printed) Show(line string, killed int) {
	if killed > p.killed {
		p.killed = killed
		fmt.Fprintf(p.out, "SIGKILL %d of %d, by turns: %v\n", killed, p.w.Kills, p.w.Roles)
	}
	if line != p.line && time.Since(p.at) > told {
		p.at, p.line = time.Now(), line
		fmt.Fprintln(p.out, line)
	}
}

func (p *printed) Done(line, note string) { fmt.Fprintln(p.out, line+"; "+note) }

// Watch kills processes and shows the progress. It ends when everything is there and nothing changes any more, or when nothing has
// changed for so long that what is missing is lost. Then it cancels waiting clients; the verdict reports them.
func (c *Cast) Watch(ctx context.Context, w Watching) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	acted := make(chan struct{})
	g.Go(func() error {
		defer close(acted)
		if w.Act == nil {
			return nil
		}
		if err := w.Act(gctx); gctx.Err() == nil {
			return err
		}
		return nil
	})
	g.Go(func() error {
		defer cancel()
		return c.watch(gctx, w, acted)
	})
	return g.Wait()
}

// due reports whether a kill should happen now, late after its planned time. When the clients are done, there is no better moment to wait
// for.
func (w Watching) due(late time.Duration, moved, done bool) bool {
	return late > 0 && (done || late > tarry || moved && (w.Moment == nil || w.Moment()))
}

func (c *Cast) watch(ctx context.Context, w Watching, acting <-chan struct{}) error {
	next := func() time.Time { // at random moments
		return time.Now().Add(time.Duration((0.5 + rand.Float64()) * float64(w.Span) / float64(max(w.Kills, 1)) * 0.95))
	}
	limit := stall
	if w.Loses {
		limit = lostStall
	}
	progress := w.Progress
	if progress == nil {
		progress = &printed{out: c.stage.Out, w: w}
	}
	last, all, err := w.State(ctx)
	if err != nil {
		return err
	}
	killAt, moved, killed, deliveries := next(), time.Now(), 0, 0
	lastKill := moved
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.failed:
			return err
		case <-acting:
			acting = nil
		case <-tick.C:
		}
		now := time.Now()
		if killed < w.Kills && w.due(now.Sub(killAt), moved.After(lastKill), all || acting == nil) && c.Kill(w.Roles[killed%len(w.Roles)]) {
			killed++
			killAt, lastKill, moved = next(), now, now
		}
		var line string
		if line, all, err = w.State(ctx); err != nil {
			return err
		}
		if d := c.Counts.Get("deliveries"); line != last || d != deliveries {
			last, deliveries, moved = line, d, now
		}
		progress.Show(line, killed)
		// A killed process may hold messages that are redelivered after the ack deadline and could double an effect.
		settled := acting == nil && killed >= w.Kills && now.Sub(moved) >= quiet && (killed == 0 || now.Sub(lastKill) >= ackDeadline+quiet)
		switch {
		case acting != nil && now.Sub(moved) >= shortStall:
			progress.Done(line, fmt.Sprintf("nothing has moved for %v, and clients wait for their answers", shortStall))
			return nil
		case all && settled:
			progress.Done(line, "every effect is there, and nothing moves any more")
			return nil
		case settled && now.Sub(moved) >= limit:
			progress.Done(line, fmt.Sprintf("nothing has moved for %v", limit))
			return nil
		}
	}
}
