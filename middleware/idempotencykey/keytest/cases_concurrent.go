package keytest

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

func concurrent(p *probe) error {
	key := p.key()
	ended, release, err := p.hold(p.ctx, key)
	defer release()
	if err != nil {
		return err
	}
	for range 2 {
		second := p.postAside(p.ctx, key)
		select {
		case <-p.began:
			return p.executed("a request whose key is in use", 1)
		case s := <-second:
			if err := p.refused("a request whose key is in use", s.reply, s.err, http.StatusConflict, 1); err != nil {
				return err
			}
		}
	}
	release()
	first := <-ended
	if err := p.accepted("the first request", first.reply, first.err, http.StatusCreated, 1); err != nil {
		return err
	}
	return p.repeated(key, first.reply, 1)
}

func waits(p *probe) error {
	key := p.key()
	ended, release, err := p.hold(p.ctx, key)
	defer release()
	if err != nil {
		return err
	}
	second := p.postAside(p.ctx, key) // before or after the release: both have the same outcome
	release()
	first := <-ended
	if err := p.accepted("the first request", first.reply, first.err, http.StatusCreated, 1); err != nil {
		return err
	}
	r := <-second
	if r.err != nil {
		return fmt.Errorf("the second request: %w", r.err)
	}
	if err := p.executed("a request whose key is in use", 1); err != nil {
		return err
	}
	return same("the request whose key was in use", first.reply, r.reply)
}

// crowd sends many requests at once. While one of them is executed, the others must be answered.
func crowd(p *probe) error {
	const size = 16
	release := p.block()
	defer release()
	key := p.key()
	ended := make(chan sent, size)
	for range size {
		go func() {
			r, err := p.post(key)
			ended <- sent{r, err}
		}()
	}
	late := time.After(p.patience)
	for refused := 0; refused < size-1; refused++ {
		select {
		case s := <-ended:
			if s.err != nil {
				return fmt.Errorf("one of %d requests with one key: %w", size, s.err)
			}
			if s.status != http.StatusConflict {
				return fmt.Errorf("one of %d requests with one key got %v while another is executed: want 409", size, s.reply)
			}
		case <-p.began:
			if err := p.executed("a crowd of requests with one key", 1); err != nil {
				return err
			}
			refused-- // it was the first execution
		case <-late:
			return fmt.Errorf("%d of %d requests with one key were refused within %v: want all but one", refused, size, p.patience)
		}
	}
	release()
	first := <-ended
	if err := p.accepted("the one that was executed", first.reply, first.err, http.StatusCreated, 1); err != nil {
		return err
	}
	return p.repeated(key, first.reply, 1)
}

func otherKey(p *probe) error {
	first, release, err := p.hold(p.ctx, p.key())
	defer release()
	if err != nil {
		return err
	}
	second := p.postAside(p.ctx, p.key())
	if err := p.executing(second); err != nil {
		return fmt.Errorf("while a request with another key is executed: %w", err)
	}
	release()
	for _, ended := range []<-chan sent{first, second} {
		switch s := <-ended; {
		case s.err != nil:
			return fmt.Errorf("one of two requests with two keys: %w", s.err)
		case s.status != http.StatusCreated:
			return fmt.Errorf("one of two requests with two keys got %v: want 201", s.reply)
		}
	}
	return nil
}

// hangUp lets the client leave while the operation is executed. Its next request must get the outcome.
func hangUp(p *probe) error {
	key := p.key()
	ctx, leave := context.WithCancel(p.ctx)
	defer leave()
	ended, release, err := p.hold(ctx, key)
	defer release()
	if err != nil {
		return err
	}
	leave()
	<-ended
	select {
	case <-p.hungUp:
	case <-time.After(p.patience):
		return fmt.Errorf("the server did not notice within %v that the client left", p.patience)
	}
	release()
	late := time.After(p.patience)
	for {
		r, err := p.post(key)
		if err == nil && r.status == http.StatusConflict {
			select {
			case <-late:
				return fmt.Errorf("the key is still in use %v after the operation ended: want its response", p.patience)
			case <-time.After(10 * time.Millisecond):
				continue
			}
		}
		if err := p.accepted("the request that is repeated after the client hung up", r, err, http.StatusCreated, 1); err != nil {
			return err
		}
		return p.repeated(key, r, 1)
	}
}
