package idempotencykey_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	serviceProcess = "MILLRACE_TEST_SERVICE" // the schema
	serviceDSN     = "MILLRACE_TEST_SERVICE_DSN"
	serviceDies    = "MILLRACE_TEST_SERVICE_DIES"
	beforeCommit   = "before the commit"
	beforeResponse = "between commit and response"
)

// die ends the process without a chance for it to do anything.
func die() {
	self := os.Process{Pid: os.Getpid()}
	_ = self.Kill()
	select {}
}

// dyingWriter ends the process when the response would be written.
type dyingWriter struct{ http.ResponseWriter }

func (dyingWriter) WriteHeader(int) { die() }

// runService is the process: a service that dies in its first request.
func runService() error {
	ctx, schema, dies := context.Background(), os.Getenv(serviceProcess), os.Getenv(serviceDies)
	pool, err := pgxpool.New(ctx, os.Getenv(serviceDSN))
	if err != nil {
		return err
	}
	keys, err := idempotencykey.New(pool, idempotencykey.Config{Service: "shop", Scope: idempotencykey.Shared, Schema: schema})
	if err != nil {
		return err
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return err
	}
	h := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := pgtx.From(r.Context())
		if _, err := tx.Exec(r.Context(), `insert into `+schema+`.orders values ('order')`); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if err := events.Publish("orders", message.NewMessageWithContext(r.Context(), outbox.NewID(), nil)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if dies == beforeCommit {
			die()
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "by the process that died")
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dies == beforeResponse {
			w = dyingWriter{w}
		}
		h.ServeHTTP(w, r)
	}))
}

func TestProcessDies(t *testing.T) {
	t.Parallel()
	for _, when := range []string{beforeCommit, beforeResponse} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), serviceProcess+"="+f.schema, serviceDies+"="+when, serviceDSN+"="+f.pool.Config().ConnString())
			cmd.Stderr = t.Output()
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill() // it may have ended
				_ = cmd.Wait()         // so it says
			})
			address, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)

			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+strings.TrimSpace(address)+"/orders", strings.NewReader("body"))
			require.NoError(t, err)
			r.Header.Set("Idempotency-Key", "k")
			r.Host = "example.com"            // httptest's
			_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is no response
			require.Error(t, err, "no response came")

			h := f.around(f.orders)
			again := post(h, "k", "body")
			require.Eventually(t, func() bool { // until the server has noticed the death
				if again.Code == http.StatusConflict {
					again = post(h, "k", "body")
				}
				return again.Code == http.StatusCreated
			}, time.Minute, 10*time.Millisecond)
			f.holds(1, 1)
			assert.Equal(t, when == beforeResponse, replayed(again))
			assert.Equal(t, map[string]string{beforeCommit: "run 1", beforeResponse: "by the process that died"}[when], again.Body.String())
			assert.True(t, replayed(post(h, "k", "body")))
		})
	}
}
