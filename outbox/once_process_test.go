package outbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/outbox/internal/progress"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	losing   = " losing answers that are noted in "               // and a file: an option, after brokers
	held     = " whose transactions are held back by what is in " // and a folder: an option, after brokers
	without  = " without "                                        // and a rule: an option, at the end
	unfenced = "fence"                                            // a rule: a relay ends what others have begun
)

// lossOneIn is of how many answers one is lost.
const lossOneIn = 50

// kafkaOf connects a relay process to the brokers of an option.
func kafkaOf(ctx context.Context, option string, pool *pgxpool.Pool) (*kafka.Transport, message.Publisher, error) {
	option, rule, _ := strings.Cut(option, without)
	option, folder, _ := strings.Cut(option, held)
	brokers, noted, loses := strings.Cut(option, losing)
	config := kafka.Config{Brokers: strings.Split(brokers, ","), DrainTimeout: 5 * time.Second}
	if rule == unfenced {
		config.Transaction.IDPrefix = fmt.Sprintf("relay-%d", os.Getpid())
	}
	network := &lossyNet{}
	if loses {
		var err error
		if network.notes, err = os.OpenFile(noted, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			return nil, nil, err
		}
		config.Dial = network.dial
	}
	k, err := kafka.New(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	network.loses.Store(loses)
	plain, err := k.PlainPublisher()
	if err != nil || folder == "" && (rule == "" || rule == unfenced) {
		return k, plain, err
	}
	r, known := onceRules[rule]
	switch {
	case folder != "":
		r.leave = func(c careful) transport.Transactions { return heldBack{c, hold(folder)} }
	case !known:
		return nil, nil, fmt.Errorf("there is no rule %q", rule)
	}
	return k, careless{plain.(transport.TransactionalPublisher), func(x transport.JointTransactions, shard int) transport.Transactions {
		return r.leave(careful{x, pool, os.Getenv(relayProcess), shard})
	}}, nil
}

// lossyNet is a network in which answers of brokers are lost. It is safe for concurrent use.
type lossyNet struct {
	notes *os.File // gets a line for each
	loses atomic.Bool
}

func (l *lossyNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &lossyConn{Conn: conn, net: l}, err
}

// lossyConn relies on sarama's writing a request at once.
type lossyConn struct {
	net.Conn
	net    *lossyNet
	broken atomic.Bool
}

func (c *lossyConn) Write(b []byte) (int, error) {
	if c.net.loses.Load() && len(b) >= 6 && rand.IntN(lossOneIn) == 0 && !c.broken.Swap(true) {
		fmt.Fprintln(c.net.notes, kmsg.Key(binary.BigEndian.Uint16(b[4:])).Name())
	}
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.broken.Load() {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Close())
	}
	return n, err
}

// careless is a publisher whose transactions leave out a rule of package progress.
type careless struct {
	transport.TransactionalPublisher
	leave func(x transport.JointTransactions, shard int) transport.Transactions
}

func (c careless) Transactions(name string, number int) transport.Transactions {
	return c.leave(c.TransactionalPublisher.Transactions(name, number).(transport.JointTransactions), number)
}

// careful are the transactions of a shard as they are.
type careful struct {
	transport.JointTransactions
	pool   *pgxpool.Pool
	schema string
	shard  int
}

// onceRule is a rule that a relay can leave out.
type onceRule struct {
	leave func(careful) transport.Transactions
	harm  func(onceVerdict) bool // what comes of it
}

func comesTwice(v onceVerdict) bool { return v.twice > 0 }

func isLost(v onceVerdict) bool { return v.lost > 0 }

var onceRules = map[string]onceRule{
	"progress": {func(c careful) transport.Transactions { return forgetful{c} }, comesTwice},
	"ids":      {func(c careful) transport.Transactions { return numbered{c} }, isLost},
	"commit":   {func(c careful) transport.Transactions { return hasty{c} }, isLost},
}

// forgetful does not know what was published.
type forgetful struct{ careful }

func (f forgetful) Take(ctx context.Context) ([]byte, error) {
	_, err := f.careful.Take(ctx)
	return nil, err
}

// numbered tells rows by their numbers alone: whatever row has a number of the progress is the one that was published.
type numbered struct{ careful }

func (n numbered) Take(ctx context.Context) ([]byte, error) {
	note, err := n.careful.Take(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := progress.Decode(note)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		var event string
		err := n.pool.QueryRow(ctx, `select event_id from `+n.schema+`.outbox where shard = $1 and seq = $2`, n.shard, id.Seq).Scan(&event)
		if err == nil {
			ids[i] = progress.IDOf(id.Seq, event)
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
	}
	return progress.Encode(ids), nil
}

// hasty has rows deleted before it is known how their transaction ends.
type hasty struct{ careful }

func (h hasty) Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error {
	return make([]error, len(h.careful.Publish(ctx, topic, msgs, note)))
}

func (h hasty) PublishTo(ctx context.Context, topics []string, msgs []*message.Message, note []byte) []error {
	return make([]error, len(h.careful.PublishTo(ctx, topics, msgs, note)))
}
