package effect

import "context"

// Housekeep is what Run does once an hour.
func Housekeep(ctx context.Context, l *Ledger) error { return l.housekeep(ctx) }
