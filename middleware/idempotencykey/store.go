package idempotencykey

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

//go:embed migrations/*.sql queries/*.sql
var files embed.FS

var migrations = pgschema.Line{Component: "idempotencykey", Files: files, Command: "idempotencykey.Migrate"}

// Migrate creates the table of stored answers in the schema ("" means "millrace"), or updates it. It may run at any time, in
// several processes at once.
func Migrate(ctx context.Context, db pgtx.DB, schema string) error {
	m, err := Migrations(db, schema)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// Migrations returns a migrator of the table in the schema ("" means "millrace"). It migrates up and down, lists the applied
// migrations, and prints the statements.
func Migrations(db pgtx.DB, schema string) (*pgschema.Migrator, error) {
	return migrations.In(db, schema)
}

// idleSlack is the time after Config.Timeout at which the server ends an idle transaction.
const idleSlack = 5 * time.Second

var (
	errReplayed = errors.New("the request was answered before")
	errRunning  = errors.New("a request with the key is running")
	errReused   = errors.New("the key was used for another request")
	errNoDay    = errors.New("today has no partition")
)

// once claims the key and calls fn. The transaction is in the context of fn, and stores the answer of fn. An error of fn rolls back
// and is returned with the answer. If the request was answered before, once returns that answer and errReplayed.
func (k *Keys) once(ctx context.Context, req *request, fn func(ctx context.Context) (*answer, error)) (*answer, error) {
	a, err := k.attempt(ctx, req, fn)
	if errors.Is(err, errNoDay) { // before fn was called: Run has not created days for a while
		if err := tableIn(k.cfg.Schema).Ahead(ctx, k.pool); err != nil {
			return nil, fmt.Errorf("make the day's partition: %w", err)
		}
		a, err = k.attempt(ctx, req, fn)
	}
	return a, err
}

func (k *Keys) attempt(ctx context.Context, req *request, fn func(ctx context.Context) (*answer, error)) (a *answer, err error) {
	err = pgtx.Run(ctx, k.pool, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if a, err = k.begin(ctx, tx, req); err != nil {
			return err
		}
		if a, err = fn(ctx); err != nil {
			return err
		}
		return pgtx.Queue(ctx, k.insert, req.id[:], k.cfg.Service, req.scope, req.key, req.summary, req.fingerprint[:],
			int16(a.status), encodeHeader(a.header, k.cfg.omitted()), a.body)
	}, pgtx.Isolation(pgx.ReadCommitted))
	return a, k.hint(err)
}

// begin claims the key and looks for a stored answer, in the round trip of BEGIN. A stored answer counts even without the lock,
// because another repetition may hold the lock for a moment.
func (k *Keys) begin(ctx context.Context, tx pgx.Tx, req *request) (*answer, error) {
	var (
		locked, day         bool
		now                 time.Time
		found               answer
		status              int16
		fingerprint, header []byte
	)
	b := &pgx.Batch{}
	b.Queue(k.claim, req.lock(), strconv.FormatInt((k.cfg.Timeout+idleSlack).Milliseconds(), 10))
	assumed := k.server.now()
	b.Queue(k.findAt(assumed), req.id[:])
	results := tx.SendBatch(ctx, b)
	err := results.QueryRow().Scan(&locked, &day, nil, nil, &now)
	if err == nil {
		err = results.QueryRow().Scan(&fingerprint, &status, &header, &found.body)
	}
	if cerr := results.Close(); cerr != nil {
		err = cerr
	}
	if errors.Is(err, pgx.ErrNoRows) && k.server.set(now, assumed) { // midnight has passed
		err = tx.QueryRow(ctx, k.findAt(now), req.id[:]).Scan(&fingerprint, &status, &header, &found.body)
	}
	switch {
	case err == nil && string(fingerprint) != string(req.fingerprint[:]):
		return nil, errReused
	case err == nil:
		found.status, found.header = int(status), decodeHeader(header)
		return &found, errReplayed
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("claim the key: %w", err)
	case !locked:
		return nil, errRunning
	case !day:
		return nil, errNoDay
	}
	return nil, nil
}

// hint adds the remedy if a relation does not exist.
func (k *Keys) hint(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("if the table is missing in schema %q, run idempotencykey.Migrate or \"millrace migrate up\": %w", k.cfg.Schema, err)
	}
	return err
}
