package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

// mailLatency is how long the mailer takes to answer after it has sent. A kill in that time is the hard case.
const mailLatency = 40 * time.Millisecond

// mails is a mail provider that has no idempotency keys, but can be asked what it has sent.
type mails struct {
	mu      sync.Mutex
	sent    map[string]int // by booking
	waiting int            // requests whose mail is sent but not yet answered
}

func (m *mails) count() (bookings int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sent)
}

// unanswered reports whether a client does not know yet that its mail was sent.
func (m *mails) unanswered() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting > 0
}

// bookings returns the number of e-mails by booking.
func (m *mails) bookings() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.sent)
}

func (m *mails) of(booking string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[booking]
}

func (m *mails) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	booking := r.PathValue("booking")
	if r.Method == http.MethodGet {
		if m.of(booking) == 0 {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	}
	m.mu.Lock()
	m.sent[booking]++
	m.waiting++
	m.mu.Unlock()
	select {
	case <-r.Context().Done():
	case <-time.After(mailLatency):
	}
	m.mu.Lock()
	m.waiting--
	m.mu.Unlock()
}

// startMailer serves the provider on loopback until stop is called.
func startMailer(ctx context.Context) (m *mails, address string, stop func(), err error) {
	m = &mails{sent: map[string]int{}}
	mux := http.NewServeMux()
	mux.Handle("/mails/{booking}", m)
	address, stop, err = stage.Provider(ctx, mux)
	return m, address, stop, err
}

// mailer is the provider's client.
type mailer struct{ address string }

func (m mailer) send(ctx context.Context, booking string) error {
	status, err := m.request(ctx, http.MethodPost, booking)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the mailer answered %d", status)
	}
	return err
}

func (m mailer) sent(ctx context.Context, booking string) (bool, error) {
	status, err := m.request(ctx, http.MethodGet, booking)
	return status == http.StatusOK, err
}

func (m mailer) request(ctx context.Context, method, booking string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.address+"/mails/"+booking, http.NoBody)
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
