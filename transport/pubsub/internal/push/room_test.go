package push

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// largeBody is a push of about size bytes.
func largeBody(size int) string {
	return strings.Replace(wrapped("1", ""), "SGVsbG8=", strings.Repeat("SGVs", size/4), 1)
}

// unread is a body that tells when the first byte of it is read.
type unread struct {
	io.Reader
	begun chan struct{}
}

func (u *unread) Read(p []byte) (int, error) {
	if u.begun != nil {
		close(u.begun)
		u.begun = nil
	}
	return u.Reader.Read(p)
}

// Requests that waited for a handler held their bodies, up to 110 of 16 MB for each subscription. Now the bodies of all
// subscriptions share Config.MaxBytes, and what finds no room is not read.
func TestPushMemoryIsBoundedInSum(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		running := make(chan *message.Message, 200)
		for _, topic := range []string{"topic", "other"} {
			messages, _ := b.subscribeTo(topic, transport.SubscriberConfig{Concurrency: 100})
			handle(messages, func(msg *message.Message) { running <- msg })
		}
		const size = MaxBodyBytes / 2
		fits := maxBytes / size
		requests := make([]chan struct{}, 0, fits+2)
		answers := make(chan int, fits+2)
		for i := range fits + 2 {
			id := []string{"topic.c", "other.c"}[i%2]
			text := strings.Replace(largeBody(size-1000), "topic.c", id, 1)
			body := &unread{strings.NewReader(text), make(chan struct{})}
			requests = append(requests, body.begun)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/push/"+id, body)
			r.ContentLength = int64(len(text))
			go func() { answers <- b.serve(r).Code }()
			synctest.Wait()
		}
		read := func() (n int) {
			for _, begun := range requests {
				select {
				case <-begun:
					n++
				default:
				}
			}
			return n
		}
		require.Equal(t, fits, read())
		(<-running).Ack() // its room is for the next
		require.Equal(t, http.StatusNoContent, <-answers)
		synctest.Wait()
		require.Equal(t, fits+1, read())
		began := time.Now()
		require.Equal(t, http.StatusTooManyRequests, <-answers, "no room came")
		require.Equal(t, 15*time.Second, time.Since(began))
		for range fits {
			(<-running).Ack()
			require.Equal(t, http.StatusNoContent, <-answers)
		}
		synctest.Wait()
		require.True(t, b.server.room.memory.TryAcquire(maxBytes), "all room is given back")
	})
}

// A body of unknown length has the room of the largest, until it is read.
func TestPushMemoryOfUnknownLength(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		messages, _ := b.subscribe(transport.SubscriberConfig{Concurrency: 10})
		body, sender := io.Pipe()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/push/topic.c", body)
		r.ContentLength = -1
		answer := make(chan int, 1)
		go func() { answer <- b.serve(r).Code }()
		synctest.Wait()
		memory := b.server.room.memory
		require.False(t, memory.TryAcquire(maxBytes-MaxBodyBytes+1))
		text := wrapped("1", "")
		_, err := io.WriteString(sender, text)
		require.NoError(t, err)
		require.NoError(t, sender.Close())
		msg := <-messages
		require.True(t, memory.TryAcquire(int64(maxBytes-len(text))))
		msg.Ack()
		require.Equal(t, http.StatusNoContent, <-answer)
	})
}

// Who waits for room is let go when the subscription closes.
func TestPushMemoryIsNotWaitedForByWhatCloses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newPushBench(t, openPush)
		_, closeAndWait := b.subscribe(transport.SubscriberConfig{})
		require.True(t, b.server.room.memory.TryAcquire(maxBytes))
		answer := b.push("1", "")
		synctest.Wait()
		began := time.Now()
		closeAndWait()
		require.Equal(t, http.StatusServiceUnavailable, (<-answer).Code)
		require.Zero(t, time.Since(began))
	})
}

// A sender that stops in the middle of a body kept its request, and its room, for as long as it liked.
func TestPushMemoryOfSlowBodies(t *testing.T) {
	t.Parallel()
	b := newPushBench(t, &setting.Push{Endpoint: "http://service.example/push"})
	b.consumer.AckDeadline = 400 * time.Millisecond // three quarters of it are for the body
	messages, _ := b.subscribe(transport.SubscriberConfig{})
	handle(messages, func(msg *message.Message) { msg.Ack() })
	server := httptest.NewServer(b.server)
	defer server.Close()

	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /push/topic.c HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusRequestTimeout, response.StatusCode)
	require.EqualValues(t, 1, b.count(outcomeSlow))
	require.True(t, b.server.room.memory.TryAcquire(maxBytes))
	b.server.room.memory.Release(maxBytes)

	// The deadline is the body's alone: a handler may take longer, and its sender is not taken for gone.
	began := time.Now()
	slow, closeSlow := b.subscribeTo("slow", transport.SubscriberConfig{})
	defer closeSlow()
	handle(slow, func(msg *message.Message) {
		<-time.After(time.Until(began.Add(600 * time.Millisecond)))
		msg.Ack()
	})
	answered, err := server.Client().Post(server.URL+"/push/slow.c", "application/json", strings.NewReader(strings.Replace(wrapped("1", ""), "topic.c", "slow.c", 1)))
	require.NoError(t, err)
	require.NoError(t, answered.Body.Close())
	require.Equal(t, http.StatusNoContent, answered.StatusCode)
}
