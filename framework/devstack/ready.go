package devstack

import (
	"context"
	"time"
)

// askOnce bounds a call to a service that the environment names, which should already run.
func askOnce(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return ask(ctx)
}
