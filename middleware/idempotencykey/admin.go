package idempotencykey

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Entry is a stored answer as shown to an operator. Times are by the server's clock.
type Entry struct {
	// ID identifies service, scope and key, in hexadecimal digits.
	ID      string `json:"id"`
	Service string `json:"service"`
	// Scope is the same for all requests of one caller. It is a hash, because a scope may be a secret: see Listing.Scope.
	Scope   string    `json:"scope"`
	Key     string    `json:"key"`
	Request string    `json:"request"` // method and path
	State   string    `json:"state"`   // "executed": its writes are committed; "rejected": the handler refused it, and nothing was written
	Status  int       `json:"status"`
	Created time.Time `json:"created"`
	Bytes   int       `json:"bytes"` // of the answer's body

	// Only Show and ShowNewest set the fields below.
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
}

// Listing selects what List returns. Zero fields select everything.
type Listing struct {
	Service string
	Scope   string // a value of Config.Scope
	Limit   int    // Default: 100
}

// List returns stored answers of the schema ("" means "millrace"), the latest first. It takes no locks and reads only what it
// returns. With a service or a scope, it also reads the later answers that do not match.
func List(ctx context.Context, db pgtx.DB, schema string, l Listing) ([]Entry, error) {
	if l.Limit == 0 {
		l.Limit = 100
	}
	var scope []byte
	if l.Scope != "" {
		scope = scopeHash(l.Scope)
	}
	return find(ctx, db, schema, "list idempotency keys", func(ctx context.Context, tx pgx.Tx, schema string) (pgx.Rows, error) {
		return tx.Query(ctx, pgschema.Query(files, "list", schema), l.Service, scope, l.Limit)
	})
}

// Show returns the stored answers for a key, one for each service and scope, with headers and body. Instead of a key it accepts an
// Entry's ID, or its first digits (at least 8).
func Show(ctx context.Context, db pgtx.DB, schema, key string) ([]Entry, error) {
	return find(ctx, db, schema, "show idempotency key", func(ctx context.Context, tx pgx.Tx, schema string) (pgx.Rows, error) {
		return tx.Query(ctx, pgschema.Query(files, "show", schema), key, idPattern(key))
	})
}

// Searched is the number of answers that ShowNewest searches for a key.
const Searched = 50_000

// ShowNewest is Show, but it searches only the newest Searched answers for the key, so it reads a bounded number of them. It finds
// an Entry's ID at any age.
func ShowNewest(ctx context.Context, db pgtx.DB, schema, key string) ([]Entry, error) {
	return find(ctx, db, schema, "show idempotency key", func(ctx context.Context, tx pgx.Tx, schema string) (pgx.Rows, error) {
		first, last := idRange(key)
		return tx.Query(ctx, pgschema.Query(files, "show_newest", schema), key, first, last, Searched)
	})
}

// idRange returns the first and the last ID that start with these digits, or nil for both if the text does not start an ID.
func idRange(text string) (first, last []byte) {
	if missing := 64 - len(text); idPattern(text) != "" && missing >= 0 {
		first, _ = hex.DecodeString(text + strings.Repeat("0", missing)) // these are digits
		last, _ = hex.DecodeString(text + strings.Repeat("f", missing))
	}
	return first, last
}

// idPattern returns a pattern for LIKE, or "", which matches no ID, if the text does not start an ID.
func idPattern(text string) string {
	if len(text) < 8 || strings.Trim(text, "0123456789abcdef") != "" {
		return ""
	}
	return text + "%"
}

// ErrNoSuchKey means that no answer is stored for the key.
var ErrNoSuchKey = errors.New(`no answer is stored for the key: "millrace keys list" shows which there are`)

// By names the operator. Each action inserts a row into the table idempotency_key_audit.
type By struct {
	Actor string // who. It must not be ""
	Note  string // why
}

// Forget deletes the stored answer with this ID, the whole Entry.ID. If a request is repeated with the key, it is executed again,
// even if the first one's writes are committed. Forget returns the deleted entry, or ErrNoSuchKey.
func Forget(ctx context.Context, db pgtx.DB, schema, id string, by By) (Entry, error) {
	const action = "forget idempotency key"
	whole, err := hex.DecodeString(id)
	if err != nil || len(whole) != 32 {
		return Entry{}, fmt.Errorf("%s: the ID is %q: want the 64 digits of Entry.ID", action, id)
	}
	if by.Actor == "" {
		return Entry{}, fmt.Errorf(`%s: By.Actor is empty: want the name of who does it`, action)
	}
	forgotten, err := find(ctx, db, schema, action, func(ctx context.Context, tx pgx.Tx, schema string) (pgx.Rows, error) {
		return tx.Query(ctx, pgschema.Query(files, "forget", schema), whole, by.Actor, by.Note)
	})
	switch {
	case err != nil:
		return Entry{}, err
	case len(forgotten) == 0:
		return Entry{}, fmt.Errorf("%s: %w", action, ErrNoSuchKey)
	}
	return forgotten[0], nil
}

// find runs one operator's query in a transaction, after checking the schema's version.
func find(ctx context.Context, db pgtx.DB, schema, action string, query func(context.Context, pgx.Tx, string) (pgx.Rows, error)) (found []Entry, err error) {
	schema, err = pgschema.Validate(schema)
	if err == nil {
		err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			if err := migrations.Check(ctx, tx, schema); err != nil {
				return err
			}
			rows, err := query(ctx, tx, schema)
			if err != nil {
				return err
			}
			found, err = pgx.CollectRows(rows, scanEntry)
			return err
		})
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w: this is for the owner of the tables, or for a role that \"millrace migrate grants\" made an operator", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", action, err)
	}
	return found, nil
}

func scanEntry(row pgx.CollectableRow) (e Entry, err error) {
	var header []byte
	err = row.Scan(&e.ID, &e.Service, &e.Scope, &e.Key, &e.Request, &e.Status, &e.Created, &e.Bytes, &header, &e.Body)
	if e.State = executed; e.Status >= http.StatusBadRequest {
		e.State = rejected
	}
	if header != nil {
		e.Header = http.Header{}
		stored := decodeHeader(header)
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(stored))) { // what was set comes before what was added
			plain := strings.TrimPrefix(name, added) // a console masks by it
			e.Header[plain] = append(e.Header[plain], stored[name]...)
		}
	}
	return e, err
}

// scopeHash distinguishes scopes without revealing them.
func scopeHash(scope string) []byte {
	sum := digest([]byte("scope"), []byte(scope))
	return sum[:8]
}
