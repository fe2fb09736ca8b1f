package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/millrace-go/millrace/bench/chaos"
)

// attack is a part of the report that measures nothing: faults, and whether the promises held under them.
type attack struct {
	name, command string
	onlyFull      bool // -quick leaves it out
	run           func(ctx context.Context, quick bool, progress io.Writer) (attacked, error)
}

// attacked is what came of an attack.
type attacked struct {
	attack
	good  bool
	text  string // what the command prints
	image string // SVG: the timeline; "" if there is none
	err   error  // it could not run
	took  time.Duration
}

// attacks returns those of the report. The seed is that of each schedule of faults.
func attacks(seed int64) []attack {
	on := func(broker string) attack {
		return attack{
			name: "chaos on " + broker, command: fmt.Sprintf("chaos -broker %s -seed %d", broker, seed),
			run: func(ctx context.Context, quick bool, progress io.Writer) (a attacked, err error) {
				cfg := chaos.Config{Broker: broker, Seed: seed, Duration: 10 * time.Minute, Out: progress}
				if quick {
					cfg.Duration = time.Minute
				}
				r, err := chaos.Run(ctx, cfg)
				if err != nil {
					return a, err
				}
				var text, image strings.Builder
				if err := r.Write(&text); err != nil {
					return a, err
				}
				err = r.WriteSVG(&image)
				return attacked{good: r.Good(), text: text.String(), image: image.String()}, err
			},
		}
	}
	return []attack{on(chaos.PubSub), on(chaos.Kafka), {
		name: "sabotage", command: fmt.Sprintf("chaos -sabotage -broker %s -seed %d", chaos.Kafka, seed), onlyFull: true,
		run: func(ctx context.Context, _ bool, progress io.Writer) (a attacked, err error) {
			var text strings.Builder
			a.good, err = chaos.Matrix(ctx, chaos.Config{Broker: chaos.Kafka, Seed: seed, Duration: time.Minute, Out: progress}, &text)
			a.text = text.String()
			return a, err
		},
	}}
}

// attackAll runs the attacks in turn.
func (c command) attackAll(ctx context.Context, quick bool) (all []attacked) {
	for _, a := range c.attacks {
		if quick && a.onlyFull {
			continue
		}
		fmt.Fprintf(c.stderr, "\n== %s\n", a.name)
		began := time.Now()
		done, err := a.run(ctx, quick, c.stderr)
		done.attack, done.err, done.took = a, err, time.Since(began)
		done.text = strings.Trim(done.text, "\n")
		fmt.Fprintf(c.stderr, "%s\n%s\n", done.text, done.verdict())
		all = append(all, done)
	}
	return all
}

// verdict is what came of an attack, in a line.
func (a attacked) verdict() string {
	switch {
	case a.err != nil:
		return a.name + " could not run: " + a.err.Error()
	case !a.good:
		return a.name + " found something"
	}
	return a.name + ": nothing is wrong"
}

func (a attacked) writeMarkdown(out io.Writer, quick bool) {
	fmt.Fprintf(out, "\n## %s\n\n`go run . %s%s`, %v\n\n**%s.**\n", a.name, a.command, arguments(quick), a.took.Round(time.Second), cell(a.verdict()))
	if a.text != "" {
		fmt.Fprintf(out, "\n```text\n%s\n```\n", a.text)
	}
}
