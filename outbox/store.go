package outbox

import (
	"fmt"

	"github.com/millrace-go/millrace/internal/enum"
)

// Store says where a committed event is until a relay has it.
type Store int

const (
	// Rows stores events as rows of the outbox's table.
	Rows Store = iota
	// Log stores events in PostgreSQL's write-ahead log alone. A relay lands them: it makes rows of them, and publishes those.
	Log
)

func (s Store) String() string {
	switch s {
	case Rows:
		return "Rows"
	case Log:
		return "Log"
	}
	return fmt.Sprintf("Store(%d)", int(s))
}

// MarshalText returns the word used in configuration files: rows or log.
func (s Store) MarshalText() ([]byte, error) { return enum.Text(s, Rows, Log) }

// UnmarshalText parses the word that MarshalText returns.
func (s *Store) UnmarshalText(word []byte) error { return enum.Read(s, word, Rows, Log) }
