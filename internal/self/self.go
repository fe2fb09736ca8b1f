// Package self names this process in the database.
package self

import (
	"fmt"
	"os"

	"github.com/google/uuid"
)

// Name is the host and the number, for people, and an identity that no other process has: containers share both.
var Name = func() string {
	host, _ := os.Hostname() // "" will do
	return fmt.Sprintf("%s:%d:%.8s", host, os.Getpid(), uuid.NewString())
}()
