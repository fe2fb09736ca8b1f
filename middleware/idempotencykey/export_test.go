package idempotencykey

import "context"

// Housekeep is what Run does once an hour.
func Housekeep(ctx context.Context, k *Keys) error { return k.housekeep(ctx) }
