package main

import (
	"context"
	"net/http"
	"strconv"
	"sync"

	"github.com/millrace-go/millrace/examples/internal/stage"
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
	p = &provider{texts: map[int64]map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle("POST /labours/{labour}", p)
	address, stop, err := stage.Provider(ctx, mux)
	return p, "http://" + address, stop, err
}
