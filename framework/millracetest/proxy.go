package millracetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// statement is a statement that a process sent to PostgreSQL.
type statement struct {
	n    int // number, from 1, over all connections of the process
	sql  string
	link int // number of its connection
	// first and last mark the ends of a batch that the client sends before it waits for an answer.
	first, last bool
	ledger      bool // sent by the effect ledger
	line        string
}

// word returns the first word of the statement, in lower case.
func (s statement) word() string {
	words := strings.Fields(strings.ToLower(s.sql))
	if len(words) == 0 {
		return ""
	}
	return strings.TrimRight(words[0], ";")
}

// controls reports whether the statement begins or ends transactions or savepoints, and does nothing else.
func (s statement) controls() bool {
	switch s.word() {
	case "begin", "start", "commit", "end", "rollback", "savepoint", "release":
		return true
	}
	return false
}

// proxy connects one process to PostgreSQL. It counts the statements, and carries out a fault at one of them.
type proxy struct {
	network, server string
	listener        net.Listener
	running         sync.WaitGroup
	died            chan struct{} // closed when the process is dead
	paused          chan struct{} // closed when the process pauses
	resumed         chan struct{} // closed when the process continues
	resume          func()        // closes resumed

	mu     sync.Mutex
	armed  bool
	fault  fault
	line   func() string // returns the handler's line that waits for PostgreSQL; nil: not needed
	dead   bool
	struck bool // the fault has happened
	links  map[*link]struct{}
	opened int
	trace  []statement
	intent []string // the arguments of the ledger's last statement
	lost   []uint32 // PIDs of server processes whose connections were cut
}

// link is one connection of the process.
type link struct {
	p              *proxy
	id             int
	client, server net.Conn
	prepared       map[string]string

	mu    sync.Mutex
	pid   uint32
	syncs int  // answers that the client has asked for
	ready int  // answers that the server has completed
	after bool // cut the connection at the next answer that the client asks for
	cutAt int  // the number of that answer; 0: none
}

func newProxy(network, server string) (*proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy: %w", err)
	}
	p := &proxy{
		network: network, server: server, listener: listener, links: map[*link]struct{}{},
		died: make(chan struct{}), paused: make(chan struct{}), resumed: make(chan struct{}),
	}
	p.resume = sync.OnceFunc(func() { close(p.resumed) })
	p.running.Go(p.serve)
	return p, nil
}

func (p *proxy) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// arm starts to count statements, and sets the fault.
func (p *proxy) arm(f fault, line func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.fault, p.line = true, f, line
}

// kill ends every connection, and refuses new ones.
func (p *proxy) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killLocked()
}

func (p *proxy) killLocked() {
	if p.dead {
		return
	}
	p.dead = true
	close(p.died)
	_ = p.listener.Close()
	for l := range p.links {
		p.cutLocked(l)
	}
}

func (p *proxy) cutLocked(l *link) {
	l.mu.Lock()
	if l.pid != 0 {
		p.lost = append(p.lost, l.pid)
	}
	l.mu.Unlock()
	l.close()
}

// sever closes the server's side of every connection. A suspended process notices that when it continues.
func (p *proxy) sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.mu.Lock()
		p.lost = append(p.lost, l.pid)
		l.mu.Unlock()
		_ = l.server.Close()
	}
}

// takeLost returns the PIDs of server processes whose connections were cut since the last call.
func (p *proxy) takeLost() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := p.lost
	p.lost = nil
	return lost
}

// isDead reports whether the process is dead, and isStruck whether its fault has happened.
func (p *proxy) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *proxy) isStruck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // the process is dead
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), p.network, p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.opened++
		l := &link{p: p, id: p.opened, client: client, server: server, prepared: map[string]string{}, ready: -1}
		p.links[l] = struct{}{}
		if p.dead {
			l.close()
		}
		p.mu.Unlock()
		p.running.Go(l.upstream)
		p.running.Go(l.downstream)
	}
}

func (l *link) close() {
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// frame reads one message of the protocol. The first message of a client has no type byte.
func frame(r io.Reader, typed bool) (kind byte, whole []byte, err error) {
	head := make([]byte, 5)
	if !typed {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	size := int(binary.BigEndian.Uint32(head[len(head)-4:]))
	if size < 4 || size > 1<<30 {
		return 0, nil, fmt.Errorf("a message of %d bytes", size)
	}
	whole = make([]byte, len(head)+size-4)
	copy(whole, head)
	_, err = io.ReadFull(r, whole[len(head):])
	return head[0], whole, err
}

// upstream forwards messages of the client.
func (l *link) upstream() {
	defer func() {
		l.close()
		l.p.mu.Lock()
		delete(l.p.links, l)
		l.p.mu.Unlock()
	}()
	_, startup, err := frame(l.client, false)
	if err != nil {
		return
	}
	if _, err := l.server.Write(startup); err != nil {
		return
	}
	begins := true // the next statement is the first of a batch
	for {
		kind, whole, err := frame(l.client, true)
		if err != nil {
			return
		}
		switch kind {
		case 'P':
			var m pgproto3.Parse
			if m.Decode(whole[5:]) == nil {
				l.prepared[m.Name] = m.Query
			}
		case 'B':
			var m pgproto3.Bind
			if m.Decode(whole[5:]) != nil {
				return
			}
			args := make([]string, len(m.Parameters))
			for i, arg := range m.Parameters {
				args[i] = string(arg)
			}
			pass, spoil := l.p.statement(l, statement{sql: l.prepared[m.PreparedStatement], first: begins}, args)
			if !pass {
				return
			}
			if spoil {
				m.PreparedStatement = "millracetest: this statement was chosen to fail"
				if whole, err = m.Encode(nil); err != nil {
					return
				}
			}
			begins = false
		case 'Q':
			var m pgproto3.Query
			if m.Decode(whole[5:]) != nil {
				return
			}
			pass, spoil := l.p.statement(l, statement{sql: m.String, first: true}, nil)
			if !pass {
				return
			}
			if spoil {
				m.String = "millracetest: this statement was chosen to fail"
				if whole, err = m.Encode(nil); err != nil {
					return
				}
			}
		}
		if kind == 'S' || kind == 'Q' {
			begins = true
			l.p.flushed(l)
		}
		if _, err := l.server.Write(whole); err != nil {
			l.p.await()
			return
		}
	}
}

// statement counts a statement. It returns whether to pass the statement on, and whether to spoil it so that the server refuses
// it.
func (p *proxy) statement(l *link, s statement, args []string) (pass, spoil bool) {
	p.mu.Lock()
	if !p.armed || p.dead {
		defer p.mu.Unlock()
		return !p.dead, false
	}
	s.n, s.link = len(p.trace)+1, l.id
	s.ledger = strings.Contains(s.sql, `"`+schema+`".effect`)
	switch {
	case s.ledger && len(args) > 0:
		p.intent = args
	case p.line != nil:
		s.line = p.line()
	}
	p.trace = append(p.trace, s)
	f := p.fault
	if f.statement != s.n || p.struck {
		p.mu.Unlock()
		return true, false
	}
	p.struck = true
	switch f.kind {
	case diesBefore:
		p.killLocked()
	case losesBefore:
		p.cutLocked(l)
	case diesAfter, losesAfter:
		l.mu.Lock()
		l.after = true
		l.mu.Unlock()
		pass = true
	case fails:
		pass, spoil = true, true
	case overtaken, suspended:
		close(p.paused)
		p.mu.Unlock()
		<-p.resumed
		return true, false
	default:
		pass = true
	}
	p.mu.Unlock()
	return pass, spoil
}

// flushed records that the client now waits for an answer.
func (p *proxy) flushed(l *link) {
	p.mu.Lock()
	for i := len(p.trace) - 1; i >= 0; i-- {
		if p.trace[i].link == l.id {
			p.trace[i].last = true
			break
		}
	}
	p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncs++
	if l.after {
		l.after, l.cutAt = false, l.syncs
	}
}

// await waits until a suspended process continues.
func (p *proxy) await() {
	select {
	case <-p.paused:
		<-p.resumed
	default:
	}
}

// downstream forwards messages of the server.
func (l *link) downstream() {
	defer l.close()
	for {
		kind, whole, err := frame(l.server, true)
		if err != nil {
			l.p.await()
			return
		}
		l.mu.Lock()
		if kind == 'K' && len(whole) >= 9 {
			l.pid = binary.BigEndian.Uint32(whole[5:9])
		}
		hold := l.cutAt > 0 && l.ready >= l.cutAt-1
		if kind == 'Z' {
			l.ready++
		}
		cut := l.cutAt > 0 && l.ready >= l.cutAt
		l.mu.Unlock()
		if cut {
			l.p.answered(l)
			return
		}
		if hold {
			continue
		}
		if _, err := l.client.Write(whole); err != nil {
			return
		}
	}
}

// answered carries out a fault after a statement: the server has executed the statement, but the client does not get the answer.
func (p *proxy) answered(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault.kind == diesAfter {
		p.killLocked()
		return
	}
	p.cutLocked(l)
}

// close ends the proxy, and waits for its goroutines.
func (p *proxy) close() {
	p.kill()
	p.resume()
	p.running.Wait()
}
