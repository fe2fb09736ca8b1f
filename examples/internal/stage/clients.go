package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	requestsAtOnce = 16
	clickTwice     = 0.2  // share of the requests that are sent twice at once
	hangUp         = 0.1  // share of the requests whose first answer is not awaited
	otherBody      = 0.05 // share of the keys that are used again for another request
	askAgain       = 0.2  // share of the requests that are sent again at the end
	hangUpAfter    = 3 * time.Millisecond
	patience       = 5 * time.Second
	restBetween    = 50 * time.Millisecond
)

// Clients send requests with idempotency keys over an unreliable connection, repeat each until it is answered, and store the answers.
// Create it with NewClients, and call Act once.
type Clients struct {
	// Answers are the first answers, by key. Like the counts below, read it after Act has returned.
	Answers   map[string]string
	Differing int // answers that differ from the first one for their key
	Repeated  int // requests that were repeated because they had no answer
	Refused   int // keys that came again with another body and were refused
	Accepted  int // keys that came again with another body and were accepted
	Waiting   int // requests that had no valid answer when ctx ended

	urls     []string
	requests int
	span     time.Duration
	request  func(i int) (key string, body, other any)
	client   *http.Client
	mu       sync.Mutex
}

// NewClients returns clients that POST that many requests to the path at the addresses, over the span. request returns the i-th one, with
// another body for which its key must not be used.
func NewClients(addresses []string, path string, requests int, span time.Duration, request func(i int) (key string, body, other any)) *Clients {
	c := &Clients{
		Answers: map[string]string{}, requests: requests, span: span, request: request,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: requestsAtOnce}},
	}
	for _, a := range addresses {
		c.urls = append(c.urls, "http://"+a+path)
	}
	return c
}

// Act sends all requests at a steady rate, and repeats some of them at the end. It ends with ctx, or with an answer after which repeating
// the request makes no sense.
func (c *Clients) Act(ctx context.Context) error {
	defer c.client.CloseIdleConnections()
	pace := time.NewTicker(c.span / time.Duration(c.requests))
	defer pace.Stop()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(requestsAtOnce)
	for i := range c.requests {
		select {
		case <-gctx.Done():
			return g.Wait()
		case <-pace.C:
		}
		g.Go(func() error { return c.one(gctx, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range c.requests {
		key, body, _ := c.request(i)
		if Chosen("again"+key, askAgain) {
			if err := c.insist(ctx, i, key, body); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Clients) one(ctx context.Context, i int) error {
	key, body, other := c.request(i)
	if Chosen("hang up"+key, hangUp) {
		hctx, cancel := context.WithTimeout(ctx, hangUpAfter)
		_, _, _ = c.post(hctx, i, key, body)
		cancel()
	}
	clicks := 1
	if Chosen("twice"+key, clickTwice) {
		clicks = 2
	}
	g, gctx := errgroup.WithContext(ctx)
	for click := range clicks {
		g.Go(func() error { return c.insist(gctx, i+click, key, body) })
	}
	if err := g.Wait(); err != nil || !Chosen("other"+key, otherBody) {
		return err
	}
	return c.misuse(ctx, i, key, other)
}

// insist repeats the request, each time to the next address, until it is answered, and compares the answer with the first one.
func (c *Clients) insist(ctx context.Context, try int, key string, body any) error {
	for ; ; try++ {
		status, answer, err := c.post(ctx, try, key, body)
		switch {
		case ctx.Err() != nil:
			c.note(func() { c.Waiting++ })
			return ctx.Err()
		case err == nil && status == http.StatusCreated:
			c.note(func() {
				if first, ok := c.Answers[key]; !ok {
					c.Answers[key] = answer
				} else if first != answer {
					c.Differing++
				}
			})
			return nil
		case err == nil && status < 500 && status != http.StatusConflict: // a conflict means that the same request is still running
			return fmt.Errorf("POST %s: status %d: %s", c.urls[try%len(c.urls)], status, answer)
		}
		c.note(func() { c.Repeated++ })
		select {
		case <-ctx.Done():
		case <-time.After(restBetween):
		}
	}
}

// misuse sends another body with a key that was used.
func (c *Clients) misuse(ctx context.Context, try int, key string, other any) error {
	for ; ctx.Err() == nil; try++ {
		switch status, _, err := c.post(ctx, try, key, other); {
		case err == nil && status == http.StatusUnprocessableEntity:
			c.note(func() { c.Refused++ })
			return nil
		case err == nil && status == http.StatusCreated:
			c.note(func() { c.Accepted++ })
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(restBetween):
		}
	}
	c.note(func() { c.Waiting++ })
	return ctx.Err()
}

// Untrue counts the answers whose ID is not that of an object made for their key. made maps IDs to keys.
func (c *Clients) Untrue(made map[string]string) (n int) {
	for key, answer := range c.Answers {
		var thing struct{ ID string }
		if err := json.Unmarshal([]byte(answer), &thing); err != nil || made[thing.ID] != key {
			n++
		}
	}
	return n
}

func (c *Clients) note(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
}

func (c *Clients) post(ctx context.Context, try int, key string, body any) (status int, answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.urls[try%len(c.urls)], bytes.NewReader(text))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	return res.StatusCode, string(got), err
}
