package chaos

import (
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

const keyHeader = "Idempotency-Key"

// providerLatency is what the provider takes to answer when it has charged: the time in which a fault hurts.
const providerLatency = 20 * time.Millisecond

// provider charges for orders. It honours idempotency keys, and can be asked for a key.
type provider struct {
	address string
	server  *http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	keys     map[string]bool
	charges  map[string]int // by order
	absorbed int            // calls whose key was known
	silent   time.Time      // until then it charges, and does not answer
	owed     bool           // nor does it answer the next call
}

func startProvider() (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return nil, err
	}
	p := &provider{address: l.Addr().String(), keys: map[string]bool{}, charges: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges/{order}", p.charge)
	mux.HandleFunc("GET /charges/{order}", p.show)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	p.serving.Go(func() { _ = p.server.Serve(l) }) // ends with stop
	return p, nil
}

func (p *provider) stop() error {
	err := p.server.Close()
	p.serving.Wait()
	return err
}

func (p *provider) charge(_ http.ResponseWriter, r *http.Request) {
	if p.book(r.PathValue("order"), r.Header.Get(keyHeader)) {
		panic(http.ErrAbortHandler) // the answer is lost
	}
	time.Sleep(providerLatency)
}

// book charges unless the key is known. A call without a key is always a new one.
func (p *provider) book(order, key string) (silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key != "" && p.keys[key] {
		p.absorbed++
	} else {
		p.keys[key] = true
		p.charges[order]++
	}
	silent = p.owed || time.Now().Before(p.silent)
	p.owed = false
	return silent
}

func (p *provider) show(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.keys[r.Header.Get(keyHeader)] {
		w.WriteHeader(http.StatusNotFound)
	}
}

// silence loses the answers for so long, and one at least.
func (p *provider) silence(lasts time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.owed = time.Now().Add(lasts), true
}

// log is how often each order was charged.
func (p *provider) log() (charges map[string]int, absorbed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.charges), p.absorbed
}
