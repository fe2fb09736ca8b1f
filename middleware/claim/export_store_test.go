package claim

import (
	"context"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// WithProof is for tests of the store alone.
var WithProof = store.WithProof

// Housekeep is what Run does once an hour.
func Housekeep(ctx context.Context, c *Claim) error { return c.housekeep(ctx) }
