package devtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/millrace-go/millrace/internal/quietport"
)

// Proxy is the network between a client and a server. It forwards everything until a fault is switched on. All methods may be called
// concurrently.
type Proxy struct {
	address, target string
	stop            chan struct{}
	running         sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	links    map[*link]struct{}
	opened   int
	delay    time.Duration
	open     chan struct{} // closed while packets pass
}

// link is a client's connection to the proxy, together with the proxy's connection to the server.
type link struct {
	client, server net.Conn
	lost           chan struct{} // closed by Strand
	ended          chan struct{}
	end            sync.Once
}

// packet is a piece of the stream, with the earliest time at which it may arrive.
type packet struct {
	data []byte
	due  time.Time
}

// NewProxy returns a proxy in front of the server at target. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, stop: make(chan struct{}), links: map[*link]struct{}{}, open: make(chan struct{})}
	close(p.open)
	if err := p.Accept(); err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	t.Cleanup(func() {
		close(p.stop)
		p.Refuse()
		p.running.Wait()
	})
	return p
}

// Address is the address that clients connect to.
func (p *Proxy) Address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// Opened is the number of connections that clients have opened.
func (p *Proxy) Opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// Reset ends every connection with an RST, on both sides.
func (p *Proxy) Reset() {
	for _, l := range p.all() {
		l.reset()
	}
}

// Refuse resets every connection and refuses new ones, like a server that is down.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.Reset()
}

// Accept ends Refuse.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	l, err := p.listen()
	if err != nil {
		return err
	}
	p.listener, p.address = l, l.Addr().String()
	p.running.Go(func() { p.serve(l) })
	return nil
}

func (p *Proxy) listen() (net.Listener, error) {
	if p.address == "" { // for the first time
		return quietport.Listen(context.Background())
	}
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", p.address)
}

// Freeze makes a black hole: no packet passes, and neither side gets an error.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Thaw ends Freeze: packets sent meanwhile arrive, as they do when TCP retransmits them.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Strand makes a black hole of the existing connections, for good, and lets new ones pass. It is what a firewall does that has dropped
// its connection table.
func (p *Proxy) Strand() {
	for _, l := range p.all() {
		close(l.lost)
		p.forget(l) // it still ends with the proxy, or when both sides close it
	}
}

// Delay delays every packet by d, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server, lost: make(chan struct{}), ended: make(chan struct{})}
		p.mu.Lock()
		p.opened++
		p.links[l] = struct{}{}
		closed := p.listener != listener
		p.mu.Unlock()
		if closed {
			l.reset()
		}
		p.pipe(l, client, server)
		p.pipe(l, server, client)
		p.running.Go(func() {
			select {
			case <-l.ended:
			case <-p.stop:
				l.close()
			}
			p.forget(l)
		})
	}
}

// pipe forwards to to what it reads from from.
func (p *Proxy) pipe(l *link, from, to net.Conn) {
	packets := make(chan packet, 1<<10)
	p.running.Go(func() {
		defer close(packets)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			p.mu.Lock()
			due := time.Now().Add(p.delay)
			p.mu.Unlock()
			select {
			case packets <- packet{data[:n], due}:
			case <-l.ended:
				return
			}
			if err != nil {
				return
			}
		}
	})
	p.running.Go(func() {
		for packet := range packets {
			if !p.arrive(l, packet.due) {
				return
			}
			if _, err := to.Write(packet.data); err != nil {
				break
			}
		}
		if p.arrive(l, time.Time{}) { // the end is a packet too
			l.close()
		}
	})
}

// arrive waits until a packet may pass. It returns false if that will never happen.
func (p *Proxy) arrive(l *link, due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ended:
		return false
	}
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
	case <-l.ended:
		return false
	}
	select {
	case <-l.lost:
		<-l.ended
		return false
	default:
		return true
	}
}

func (l *link) close() {
	l.end.Do(func() {
		_ = l.client.Close()
		_ = l.server.Close()
		close(l.ended)
	})
}

// reset is close with an RST, which discards packets in transit.
func (l *link) reset() {
	_ = l.client.(*net.TCPConn).SetLinger(0)
	_ = l.server.(*net.TCPConn).SetLinger(0)
	l.close()
}
