package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// delayedConn is a connection over a longer way: what arrives is handed on one round trip later. Both ways are folded
// into the answer's, which for requests and answers is the same. Several answers of one pipeline are each late by one
// round trip, not by the sum.
//
// Like every net.Conn it may be read by one goroutine and written by another.
type delayedConn struct {
	net.Conn
	roundTrip time.Duration
	timer     preciseTimer
	arrived   chan arrival
	closing   chan struct{}
	closeOnce sync.Once
	reading   sync.WaitGroup

	rest []byte // of the arrival that Read is handing on
	err  error
}

type arrival struct {
	data []byte
	at   time.Time
	err  error
}

// delayedDial returns a dial function whose connections are that far away.
func delayedDial(roundTrip time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		timer, err := newPreciseTimer()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		d := &delayedConn{
			Conn: conn, roundTrip: roundTrip, timer: timer, arrived: make(chan arrival, 64), closing: make(chan struct{}),
		}
		d.reading.Go(d.receive)
		return d, nil
	}
}

// receive notes when data arrives, also while Read is waiting with earlier data.
func (d *delayedConn) receive() {
	for {
		buffer := make([]byte, 16<<10)
		n, err := d.Conn.Read(buffer)
		select {
		case d.arrived <- arrival{buffer[:n], time.Now(), err}:
		case <-d.closing:
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *delayedConn) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		if d.err != nil {
			return 0, d.err
		}
		select {
		case a := <-d.arrived:
			if a.err == nil { // an end of the connection, or a deadline, is no answer
				if err := d.timer.sleep(time.Until(a.at.Add(d.roundTrip))); err != nil {
					return 0, err
				}
			}
			d.rest, d.err = a.data, a.err
		case <-d.closing:
			return 0, net.ErrClosed
		}
		if len(d.rest) == 0 {
			return 0, d.err
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func (d *delayedConn) Close() error {
	err := net.ErrClosed
	d.closeOnce.Do(func() {
		close(d.closing)
		err = d.Conn.Close()
		d.reading.Wait()
		d.timer.close()
	})
	return err
}
