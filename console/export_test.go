package console

import (
	"time"

	"github.com/millrace-go/millrace/console/internal/bucket"
)

// Limit lets each user act so many times at once, and see so many payloads, and then once every so long.
func (c *Console) Limit(atOnce int, every time.Duration) {
	c.actions, c.reveals = bucket.New(atOnce, every), bucket.New(atOnce, every)
}
