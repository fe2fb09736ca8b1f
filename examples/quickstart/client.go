package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// clients is how many requests run at the same time.
const clients = 16

// client completes every labour, at a steady rate, and repeats each request until it is answered.
func (s *service) client(ctx context.Context) error {
	pace := time.NewTicker(time.Duration(float64(time.Second) / s.cfg.Rate))
	defer pace.Stop()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	for id := 1; id <= s.cfg.Events; id++ {
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-pace.C:
		}
		g.Go(func() error { return s.complete(ctx, id) })
	}
	return g.Wait()
}

func (s *service) complete(ctx context.Context, id int) error {
	url := fmt.Sprintf("http://%s/labours/%d/complete", s.cfg.API, id)
	for {
		status, err := post(ctx, url)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && status < 300:
			s.count("answered")
			return nil
		case err == nil && status < 500:
			return fmt.Errorf("POST %s: status %d", url, status)
		}
		s.count("retries")
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func post(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
