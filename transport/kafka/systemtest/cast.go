package main

import (
	"fmt"
	"io"
	"time"

	"github.com/millrace-go/millrace/internal/role"
)

const (
	stopPatience = 40 * time.Second
	// maxCrashes is how often copiers may end by themselves before that is the result: a client may give up on a broker
	// that is down, and is started again by whoever runs it.
	maxCrashes = 20
)

// hurry is what copiers are told, besides to stop.
const hurry = "hurry"

// cast is the copiers.
type cast struct {
	configs []copierConfig
	running []*role.Process
	hurried bool
	crashes int
	logs    io.Writer
	say     func(string, ...any)
}

func (r *trial) newCast(o options) *cast {
	c := &cast{logs: io.Discard, say: r.say}
	if o.verbose {
		c.logs = r.stderr
	}
	for i := range r.copiers {
		config := copierConfig{
			Delivery: o.delivery, Brokers: r.cluster.Brokers(), Input: r.input, Output: r.output, Group: r.group,
			Number: i + 1, Every: r.span() * time.Duration(r.copiers) / time.Duration(r.messages),
		}
		if r.static {
			config.Instance = fmt.Sprintf("copier-%d", i+1)
		}
		c.configs = append(c.configs, config)
	}
	return c
}

func (c *cast) start() error {
	for i := range c.configs {
		process, err := c.startOne(i)
		if err != nil {
			return err
		}
		c.running = append(c.running, process)
	}
	return nil
}

func (c *cast) startOne(i int) (*role.Process, error) {
	config := c.configs[i]
	if c.hurried {
		config.Every = 0
	}
	return role.Start("copier", config, c.logs, c.logs)
}

// bounce ends a copier, well or by SIGKILL, and starts it again.
func (c *cast) bounce(i int, clean bool) (err error) {
	if clean {
		if err := c.running[i].Stop(stopPatience); err != nil {
			c.say("copier %d: %v", i+1, err)
		}
	} else {
		c.running[i].Kill()
	}
	c.running[i], err = c.startOne(i)
	return err
}

// failure starts again what has ended by itself. It returns an error when that was too often.
func (c *cast) failure() error {
	for i, process := range c.running {
		select {
		case <-process.Ended():
		default:
			continue
		}
		if c.crashes++; c.crashes == maxCrashes {
			return fmt.Errorf("copiers ended %d times by themselves, at last number %d with: %w; see its log with -v", c.crashes, i+1, process.Err())
		}
		c.say("copier %d ended by itself (%v), and is started again", i+1, process.Err())
		var err error
		if c.running[i], err = c.startOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *cast) tell(line string) {
	c.hurried = c.hurried || line == hurry
	for _, process := range c.running {
		process.Tell(line)
	}
}

// stop ends all copiers well and returns how many did not.
func (c *cast) stop() (unclean int) {
	c.tell(role.Stop)
	for i, process := range c.running {
		if err := process.Stop(stopPatience); err != nil {
			c.say("copier %d: %v", i+1, err)
			unclean++
		}
	}
	c.running = nil
	return unclean
}

func (c *cast) kill() {
	for _, process := range c.running {
		process.Kill()
	}
}
