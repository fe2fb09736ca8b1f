package main

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// provider is a fake SMS provider that honours idempotency keys, as real ones do: it sends one text per key.
type provider struct {
	mu    sync.Mutex
	calls int
	texts map[int64]map[string]bool // labour → keys
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	labour, err := strconv.ParseInt(r.PathValue("labour"), 10, 64)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" {
		http.Error(w, "want POST /labours/{number} with an Idempotency-Key", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.texts[labour] == nil {
		p.texts[labour] = map[string]bool{}
	}
	p.texts[labour][key] = true
}

// sent returns how many texts each labour's family got, how many that are in all, and how many calls repeated a key.
func (p *provider) sent() (perLabour map[int64]int, texts, repeated int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	perLabour = map[int64]int{}
	for labour, keys := range p.texts {
		perLabour[labour] = len(keys)
		texts += len(keys)
	}
	return perLabour, texts, p.calls - texts
}

// startProvider serves the provider on loopback until stop is called.
func startProvider(ctx context.Context) (p *provider, url string, stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	p = &provider{texts: map[int64]map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle("POST /labours/{labour}", p)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // ends with Close
	return p, "http://" + l.Addr().String(), func() {
		_ = server.Close()
		serving.Wait()
	}, nil
}
