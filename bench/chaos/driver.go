package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	accounts     = 12
	perSecond    = 20
	openRequests = 64 // beyond them none is begun
	answerWithin = 12 * time.Second
	hangUpAfter  = 3 * time.Millisecond
	retryAfter   = 100 * time.Millisecond

	usualHold = 200 * time.Millisecond // of one order in ten
	slowHold  = 3 * time.Second        // of one in five, while commits are slow
)

// driver sends orders with idempotency keys, hangs up on some, and repeats each until it is answered.
type driver struct {
	urls   []string
	client *http.Client

	mu        sync.Mutex
	sent      map[string]time.Time // by key
	answers   map[string]string    // the first one for each key: the order's ID
	differing []finding
	repeated  int
	slow      time.Time // until then commits are slow
}

func newDriver(addresses []string) *driver {
	d := &driver{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: openRequests}}, sent: map[string]time.Time{}, answers: map[string]string{}}
	for _, a := range addresses {
		d.urls = append(d.urls, "http://"+a+"/orders")
	}
	return d
}

// drive begins orders until stop is closed, and returns when all are answered, or ctx ends.
func (d *driver) drive(ctx context.Context, stop <-chan struct{}) {
	defer d.client.CloseIdleConnections()
	room := make(chan struct{}, openRequests)
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			return
		case <-tick.C:
		}
		select {
		case room <- struct{}{}:
		default:
			continue // enough wait already
		}
		running.Go(func() {
			defer func() { <-room }()
			d.one(ctx, i)
		})
		i++
	}
}

// one sends an order: some with an answer that nobody waits for first, some once more afterwards.
func (d *driver) one(ctx context.Context, i int) {
	key := fmt.Sprintf("order-%d", i)
	body := order{Account: fmt.Sprintf("account-%d", i%accounts)}
	d.mu.Lock()
	d.sent[key] = time.Now()
	if slow := time.Now().Before(d.slow); slow && i%5 == 0 {
		body.HoldMS = slowHold.Milliseconds()
	} else if i%10 == 0 {
		body.HoldMS = usualHold.Milliseconds()
	}
	d.mu.Unlock()
	if i%12 == 3 {
		hctx, cancel := context.WithTimeout(ctx, hangUpAfter)
		_, _, _ = d.post(hctx, i, key, body)
		cancel()
	}
	d.insist(ctx, i, key, body)
	if i%12 == 7 {
		d.insist(ctx, i+1, key, body)
	}
}

// insist repeats the request until it is answered, each time at the next address.
func (d *driver) insist(ctx context.Context, try int, key string, body order) {
	for ; ctx.Err() == nil; try++ {
		status, answer, err := d.post(ctx, try, key, body)
		if err == nil && status == http.StatusCreated {
			d.note(key, answer)
			return
		}
		d.mu.Lock()
		d.repeated++
		d.mu.Unlock()
		_ = pause(ctx, retryAfter) // the loop sees its end
	}
}

func (d *driver) note(key string, answer []byte) {
	var o order
	if err := json.Unmarshal(answer, &o); err != nil {
		o.ID = fmt.Sprintf("%q", answer)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if first, ok := d.answers[key]; !ok {
		d.answers[key] = o.ID
	} else if first != o.ID {
		d.differing = append(d.differing, finding{Class: doubled, What: fmt.Sprintf("key %s: answered with order %s, then with order %s", key, first, o.ID), At: d.sent[key]})
	}
}

func (d *driver) post(ctx context.Context, try int, key string, body order) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.urls[try%len(d.urls)], bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set(keyHeader, key)
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

// slowCommits keeps transactions open for so long.
func (d *driver) slowCommits(lasts time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = time.Now().Add(lasts)
}

// progress is how many orders were begun and answered.
func (d *driver) progress() (sent, answered int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sent), len(d.answers)
}
