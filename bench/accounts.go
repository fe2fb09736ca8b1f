package main

import (
	"context"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// accountRows is how many accounts there are.
	accountRows = 20_000
	// accountStride spreads events that follow each other over the table's pages.
	accountStride = 7_919
)

// account is the one that the n-th event books to. Events that are in flight together book to different accounts, so that
// nobody measures waits for row locks.
func account(n int) int { return n*accountStride%accountRows + 1 }

// accounts is what the handlers write to: their effect is one small UPDATE.
type accounts struct{ schema string }

func (a accounts) table() string { return a.schema + ".accounts" }

func (a accounts) create(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create table `+a.table()+` (id int primary key, balance bigint not null) with (fillfactor = 70);
		insert into `+a.table()+` select id, 0 from generate_series(1, `+strconv.Itoa(accountRows)+`) id`)
	return err
}

func (a accounts) update() string {
	return `update ` + a.table() + ` set balance = balance + 1 where id = $1`
}

// booked counts the effects that there have been.
func (a accounts) booked(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, `select sum(balance)::bigint from `+a.table()).Scan(&n)
	return n, err
}

// accountOf is the account that the event books to.
func accountOf(msg *message.Message) (int, error) { return strconv.Atoi(string(msg.Payload)) }
