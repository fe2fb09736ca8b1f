// Package payload determines the type, the version and the format of an event's payload, and upcasts older versions.
package payload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// Metadata entries of an event.
const (
	TypeMetadata    = "millrace_type"
	VersionMetadata = "millrace_version"
)

// MaxVersion is the highest version that a name can have.
const MaxVersion = 999_999_999

// Kind is the type and the version of an event.
type Kind struct {
	Name    string // "" if the event has no type
	Version int
	Any     bool // the topic has events of all types and versions
}

// versionedType and versionedPackage are names with a Version: OrderPlacedV2, and shop.v2.OrderPlaced.
var (
	versionedType    = regexp.MustCompile(`^(.*[a-z0-9])V([1-9][0-9]{0,8})$`)
	versionedPackage = regexp.MustCompile(`^(.*\.)?v([1-9][0-9]{0,8})\.(.+)$`)
)

// kindOf derives type and version from the name of a Go type, or of a protobuf message.
func kindOf(t reflect.Type, protobuf string) Kind {
	if t == raw {
		return Kind{Version: 1, Any: true}
	}
	if m := versionedPackage.FindStringSubmatch(protobuf); m != nil {
		return Kind{Name: m[1] + m[3], Version: number(m[2])}
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := cmp.Or(protobuf, t.Name())
	if m := versionedType.FindStringSubmatch(name); m != nil {
		return Kind{Name: m[1], Version: number(m[2])}
	}
	return Kind{Name: name, Version: 1}
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // the patterns allow only digits
	return n
}

// KindFrom reads the kind of an event from its metadata.
func KindFrom(metadata message.Metadata) (Kind, error) {
	k := Kind{Name: metadata.Get(TypeMetadata), Version: 1}
	text := metadata.Get(VersionMetadata)
	if text == "" {
		return k, nil
	}
	var err error
	if k.Version, err = strconv.Atoi(text); err != nil || k.Version < 1 {
		return k, fmt.Errorf("metadata %s is %q: want a number, 1 or more", VersionMetadata, text)
	}
	return k, nil
}

// raw is the type of payloads that are not decoded.
var raw = reflect.TypeFor[json.RawMessage]()

// versionedCloudEvent is the type of a CloudEvent with a Version: OrderPlaced.v2.
var versionedCloudEvent = regexp.MustCompile(`^(.+)\.v([1-9][0-9]{0,8})$`)

// CloudEvent returns the type attribute for events of this kind. Version 1 has no suffix, unless the name itself ends like one
// with a version.
func (k Kind) CloudEvent() string {
	if k.Version == 1 && !versionedCloudEvent.MatchString(k.Name) {
		return k.Name
	}
	return k.Name + ".v" + strconv.Itoa(k.Version)
}

// SetKind sets the type and version entries from the type attribute of a CloudEvent.
func SetKind(metadata message.Metadata, of string) {
	name, version := of, "1"
	if m := versionedCloudEvent.FindStringSubmatch(of); m != nil {
		name, version = m[1], m[2]
	}
	metadata.Set(TypeMetadata, name)
	metadata.Set(VersionMetadata, version)
}

// Happened returns the time in an event's ID, or false if the ID has no time.
func Happened(id string) (time.Time, bool) {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return time.Time{}, false
	}
	return time.Unix(parsed.Time().UnixTime()), true
}

// Patience returns how long an event of an unknown version waits for its next retry. It is half of the event's age, between 1 s
// and 1 min, so that many old events cost little.
func Patience(id string, now time.Time) time.Duration {
	const least, most = time.Second, time.Minute
	happened, ok := Happened(id)
	if !ok {
		return most
	}
	return min(max(now.Sub(happened)/2, least), most)
}

// waitError is an error with the time until the next retry.
type waitError struct {
	error
	after time.Duration
}

func (e waitError) Unwrap() error             { return e.error }
func (e waitError) RetryAfter() time.Duration { return e.after }

// Wait returns err with the time after which to retry the event.
func Wait(err error, after time.Duration) error { return waitError{err, after} }
