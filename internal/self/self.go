// Package self names this process in the database.
package self

import (
	"fmt"
	"os"

	"github.com/google/uuid"
)

// Name is the host name and the process ID, for people, and a random part, because containers may share both.
var Name = func() string {
	host, _ := os.Hostname() // "" is acceptable
	return fmt.Sprintf("%s:%d:%.8s", host, os.Getpid(), uuid.NewString())
}()
