package redisclaim

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/middleware/claim"
)

//go:embed scripts/*.lua
var files embed.FS

var (
	acquireScript  = script("acquire")
	extendScript   = script("extend")
	completeScript = script("complete")
	releaseScript  = script("release")
)

func script(name string) *redis.Script {
	text, err := files.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return redis.NewScript(string(text))
}

// Values of a key: a prefix and the holder's token.
const (
	held = "held:"
	done = "done:"
)

// keyOf returns the key of a claim. The length distinguishes "a:b" and "c" from "a" and "b:c". It must be the same in every
// process.
func keyOf(prefix string, k claim.Key) string {
	return fmt.Sprintf("%s:claim:%d:%s:%s", prefix, len(k.Consumer), k.Consumer, k.EventID)
}

// lock is held from acquire until release or complete.
type lock struct {
	s     *Store
	key   string
	token string
	until time.Time // the earliest end after acquire, by this process's monotonic clock
	ended bool      // completed: nothing to release
}

// acquire returns claim.ErrContended or claim.ErrCompleted, and no lock, if the claim is refused. After any other error Redis may
// have the lock nevertheless, so it must be released.
func (s *Store) acquire(ctx context.Context, k claim.Key) (*lock, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	l := &lock{s: s, key: keyOf(s.cfg.Prefix, k), token: rand.Text(), until: time.Now().Add(s.cfg.TTL)}
	value, err := acquireScript.Run(ctx, s.client, []string{l.key}, held+l.token, s.cfg.TTL.Milliseconds()).Text()
	switch {
	case err != nil:
		return l, fmt.Errorf("take the lock in Redis: %w", err)
	case strings.HasPrefix(value, done):
		return nil, claim.ErrCompleted
	case value != held+l.token:
		return nil, claim.ErrContended
	}
	return l, nil
}

// keep extends the lock until stop is called. stop may be called again. keep calls lost if Redis says that the lock belongs to
// another holder, and if the lock would have ended without an extension. It may call lost more than once.
func (l *lock) keep(ctx context.Context, lost func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the handler may run after its context has ended
	var beating sync.WaitGroup
	beating.Go(func() { l.beat(ctx, lost) })
	return func() {
		cancel()
		beating.Wait()
	}
}

func (l *lock) beat(ctx context.Context, lost func()) {
	// A separate timer: a call that hangs must not delay it.
	end := time.AfterFunc(time.Until(l.until), func() {
		l.s.cfg.Logger.WarnContext(ctx, "the lock in Redis could not be extended in time", "key", l.key)
		lost()
	})
	defer end.Stop()
	ttl := l.s.cfg.TTL
	timer := time.NewTimer(ttl / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		err := l.extend(ctx)
		switch {
		case err == nil:
			end.Reset(ttl - time.Since(began))
			timer.Reset(ttl / 3)
		case errors.Is(err, ErrLockLost):
			l.s.cfg.Logger.WarnContext(ctx, "the lock in Redis was lost", "key", l.key)
			lost()
			return
		default:
			timer.Reset(ttl / 20)
		}
	}
}

// extend extends the lock by TTL. It returns an error that wraps ErrLockLost if the lock belongs to another holder.
func (l *lock) extend(ctx context.Context) error {
	return l.ask(ctx, l.s.cfg.TTL/3, "extend", extendScript, l.s.cfg.TTL.Milliseconds())
}

// complete replaces the lock with the marker. It returns an error that wraps ErrLockLost if the lock belongs to another holder.
func (l *lock) complete(ctx context.Context) error {
	// The effect has happened, even if the context has ended since.
	err := l.ask(context.WithoutCancel(ctx), l.s.cfg.TTL/3, "complete", completeScript, done+l.token, l.s.cfg.Retention.Milliseconds())
	l.ended = err == nil
	return err
}

// release releases the lock if it is still ours. An error is only logged, because the lock ends by itself.
func (l *lock) release(ctx context.Context) {
	if l == nil || l.ended {
		return
	}
	err := l.ask(context.WithoutCancel(ctx), l.s.patience, "release", releaseScript)
	if err != nil && !errors.Is(err, ErrLockLost) {
		l.s.cfg.Logger.WarnContext(ctx, "the lock in Redis was not released and ends with its TTL", "key", l.key, "error", err)
	}
}

// ask runs a script that acts only if the lock is ours.
func (l *lock) ask(ctx context.Context, within time.Duration, what string, script *redis.Script, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ours, err := script.Run(ctx, l.s.client, []string{l.key}, append([]any{held + l.token}, args...)...).Bool()
	if err != nil {
		return fmt.Errorf("%s the lock in Redis: %w", what, err)
	}
	if !ours {
		return fmt.Errorf("%s the lock: %w", what, ErrLockLost)
	}
	return nil
}
