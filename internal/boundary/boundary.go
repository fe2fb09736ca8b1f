// Package boundary lets packages that do not import each other detect that a caller mixes things that cannot commit together.
package boundary

// Postgres is the key under which package pgtx stores a transaction in a context.
type Postgres struct{}
