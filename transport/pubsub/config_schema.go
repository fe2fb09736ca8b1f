package pubsub

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace-go/millrace/internal/enum"
)

// SchemaConfig is the schema of a topic: Pub/Sub refuses a message whose payload does not fit it. It is applied and compared as
// TopicConfig is. An outbox makes an event that the schema refuses dead at once; other events go on.
type SchemaConfig struct {
	// Name is the schema, which must exist: its ID in the topic's project, or projects/…/schemas/…. Required.
	Name string
	// Encoding is how payloads are encoded: json or binary. Default: JSON.
	Encoding Encoding
	// FirstRevision is the ID of the oldest revision of the schema that a payload may fit. Default: "", any.
	FirstRevision string
	// LastRevision is the ID of the newest one. Default: "", any.
	LastRevision string
}

var (
	schemaPattern   = regexp.MustCompile(`^(projects/[^/]+/schemas/)?[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)
	revisionPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)
)

// validate reports everything that is wrong, naming fields as those of path.
func (c SchemaConfig) validate(path string) error {
	var errs []error
	if id := c.Name[strings.LastIndex(c.Name, "/")+1:]; !schemaPattern.MatchString(c.Name) || strings.HasPrefix(id, "goog") {
		errs = append(errs, fmt.Errorf("%s.Name is %q: want the ID of a schema, or projects/…/schemas/…", path, c.Name))
	}
	if c.Encoding < JSON || c.Encoding > Binary {
		errs = append(errs, fmt.Errorf("%s.Encoding is %s: want JSON or Binary", path, c.Encoding))
	}
	for field, id := range map[string]string{"FirstRevision": c.FirstRevision, "LastRevision": c.LastRevision} {
		if id != "" && !revisionPattern.MatchString(id) {
			errs = append(errs, fmt.Errorf("%s.%s is %q: want the ID of a revision, 8 hexadecimal digits (gcloud pubsub schemas list-revisions)", path, field, id))
		}
	}
	return errors.Join(errs...)
}

// Encoding is how the payloads of a topic with a schema are encoded.
type Encoding int

// The encodings.
const (
	JSON Encoding = iota
	Binary
)

func (e Encoding) String() string {
	switch e {
	case JSON:
		return "JSON"
	case Binary:
		return "Binary"
	}
	return fmt.Sprintf("Encoding(%d)", int(e))
}

// MarshalText writes the word that a configuration file has: json or binary.
func (e Encoding) MarshalText() ([]byte, error) { return enum.Text(e, JSON, Binary) }

// UnmarshalText reads it.
func (e *Encoding) UnmarshalText(word []byte) error { return enum.Read(e, word, JSON, Binary) }
