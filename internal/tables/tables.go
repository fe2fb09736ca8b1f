// Package tables knows which components have tables, and finds which of them a schema has.
package tables

import (
	"context"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/schedule"
	"github.com/millrace-go/millrace/pgtx"
)

// Components are the components that have tables, in the order of their migrations.
var Components = []struct {
	Name string
	In   func(pgtx.DB, string) (*pgschema.Migrator, error)
}{
	{"outbox", outbox.Migrations},
	{"claim", claim.Migrations},
	{"effect", effect.Migrations},
	{"idempotencykey", idempotencykey.Migrations},
	{"schedule", schedule.Migrations},
}

// Kept are tables with a partition for each day. Of and Flag are their names in "millrace retention".
var Kept = []struct{ Of, Component, Table, Flag string }{
	{"claims", "claim", "processed", "claims"}, {"effects", "effect", "effect", "effects"}, {"http_keys", "idempotencykey", "idempotency_key", "http-keys"},
}

// Migrators returns the migrators of all components in the schema.
func Migrators(db pgtx.DB, schema string) (all []*pgschema.Migrator, err error) {
	for _, c := range Components {
		m, err := c.In(db, schema)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// Installed returns which components have tables in the schema.
func Installed(ctx context.Context, db pgtx.DB, schema string) (map[string]bool, error) {
	there := map[string]bool{}
	all, err := Migrators(db, schema)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		of, err := m.Status(ctx)
		if err != nil {
			return nil, err
		}
		for _, step := range of {
			if step.AppliedAt != nil {
				there[m.Component()] = true
			}
		}
	}
	return there, nil
}
