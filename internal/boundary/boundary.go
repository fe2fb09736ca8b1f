// Package boundary lets parts that know nothing of each other notice that somebody mixes what cannot commit together.
package boundary

// Postgres is the key under which package pgtx keeps a transaction in a context.
type Postgres struct{}
