package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// The requests of Kafka's protocol that a transaction consists of, by their API keys.
const (
	requestProduce       = 0
	requestAddPartitions = 24
	requestAddOffsets    = 25
	requestEndTxn        = 26
	requestOffsetCommit  = 28 // within a transaction
)

// tap dials for one contestant, to brokers that may be some way off, and counts what it asks of them. It is safe for
// concurrent use.
type tap struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu        sync.Mutex
	asked     map[int16]map[string]int // by request and broker
	committed int                      // transactions whose end the brokers have confirmed
}

// newTap returns a tap to brokers whose answers take so much longer.
func newTap(away time.Duration) *tap {
	t := &tap{dial: (&net.Dialer{}).DialContext, asked: map[int16]map[string]int{}}
	if away > 0 {
		t.dial = delayedDial(away)
	}
	return t
}

// DialContext is the signature of Millrace's and of franz-go's option.
func (t *tap) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := t.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &tappedConn{Conn: conn, tap: t, address: address, ending: map[uint32]int{}}
	c.requests.read = c.request
	c.answers.read = c.answer
	return c, nil
}

// Dial implements golang.org/x/net/proxy.Dialer, which is what sarama takes.
func (t *tap) Dial(network, address string) (net.Conn, error) {
	return t.DialContext(context.Background(), network, address)
}

// perTransaction is what there was for each transaction: AddPartitions, AddOffsets, TxnOffsetCommit and EndTxn, Produce to
// the broker that got the most, messages, of which there were n, and the requests of the first four kinds together.
func (t *tap) perTransaction(n int) [7]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := func(request int16) (all float64) {
		for _, n := range t.asked[request] {
			all += float64(n)
		}
		return all
	}
	most := 0
	for _, n := range t.asked[requestProduce] {
		most = max(most, n)
	}
	counts := [7]float64{sum(requestAddPartitions), sum(requestAddOffsets), sum(requestOffsetCommit), sum(requestEndTxn), float64(most), float64(n)}
	for _, count := range counts[:4] {
		counts[6] += count
	}
	for i := range counts {
		counts[i] /= float64(t.committed)
	}
	return counts
}

// tappedConn reads along. Like every net.Conn it may be read by one goroutine and written by another.
type tappedConn struct {
	net.Conn
	tap      *tap
	address  string
	requests frames
	answers  frames

	ending map[uint32]int // transactions that are to end, by correlation ID: where the answer has its error. Guarded by tap.mu
}

func (c *tappedConn) Write(p []byte) (int, error) {
	c.requests.feed(p)
	return c.Conn.Write(p)
}

func (c *tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.answers.feed(p[:n])
	return n, err
}

// request counts one: its API key, version and correlation ID come first.
func (c *tappedConn) request(head []byte) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	key, version := int16(binary.BigEndian.Uint16(head)), binary.BigEndian.Uint16(head[2:])
	if c.tap.asked[key] == nil {
		c.tap.asked[key] = map[string]int{}
	}
	c.tap.asked[key][c.address]++
	if key == requestEndTxn {
		at := 8 // behind the correlation ID and the throttling time
		if version >= 3 {
			at++ // and the tags
		}
		c.ending[binary.BigEndian.Uint32(head[4:])] = at
	}
}

func (c *tappedConn) answer(head []byte) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	id := binary.BigEndian.Uint32(head)
	at, ok := c.ending[id]
	if !ok {
		return
	}
	delete(c.ending, id)
	if len(head) >= at+2 && head[at] == 0 && head[at+1] == 0 {
		c.tap.committed++
	}
}

// frames finds the heads of the frames in a stream of them: each begins with its length, of four bytes.
type frames struct {
	read func(head []byte)

	length [4]byte
	head   [11]byte
	got    int // of the frame, its length included
}

func (f *frames) feed(p []byte) {
	for len(p) > 0 {
		if f.got < len(f.length) {
			n := copy(f.length[f.got:], p)
			f.got += n
			p = p[n:]
			continue
		}
		size, body := int(binary.BigEndian.Uint32(f.length[:])), f.got-len(f.length)
		head := min(size, len(f.head))
		n := min(size-body, len(p))
		if body < head {
			n = copy(f.head[body:head], p)
			if body+n == head {
				f.read(f.head[:head])
			}
		}
		f.got += n
		p = p[n:]
		if f.got == len(f.length)+size {
			f.got = 0
		}
	}
}
