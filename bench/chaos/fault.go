package chaos

import (
	"context"
	"sync"
	"time"
)

// system is all that faults befall.
type system struct {
	*stack
	cast     *cast
	driver   *driver
	provider *provider
	observer *observer // nil on Kafka
	needs    needs
}

// happened is a fault that was done.
type happened struct {
	fault
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Error string    `json:"error,omitempty"` // why it was not done as it should have been
}

// needs are the locks of what only one fault at a time may have.
type needs struct {
	mu    sync.Mutex
	locks map[string]*sync.Mutex
}

func (n *needs) of(name string) *sync.Mutex {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.locks == nil {
		n.locks = map[string]*sync.Mutex{}
	}
	if n.locks[name] == nil {
		n.locks[name] = &sync.Mutex{}
	}
	return n.locks[name]
}

// befall does the faults at their times, and returns when all are over and everything runs again.
func (s *system) befall(ctx context.Context, faults []fault, kinds []kind) []happened {
	byName := map[string]kind{}
	for _, k := range kinds {
		byName[k.name] = k
	}
	var (
		mu      sync.Mutex
		done    []happened
		running sync.WaitGroup
	)
	began := time.Now()
	for _, f := range faults {
		if pause(ctx, time.Until(began.Add(f.At))) != nil {
			break
		}
		running.Go(func() {
			h := s.one(ctx, f, byName[f.Kind])
			mu.Lock()
			defer mu.Unlock()
			done = append(done, h)
		})
	}
	running.Wait()
	return done
}

func (s *system) one(ctx context.Context, f fault, k kind) happened {
	if k.needs != "" {
		lock := s.needs.of(k.needs)
		lock.Lock()
		defer lock.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, f.Lasts+againWithin)
	defer cancel()
	h := happened{fault: f, From: time.Now()}
	if err := k.do(ctx, s, f); err != nil {
		h.Error = err.Error()
	}
	h.To = time.Now()
	return h
}
