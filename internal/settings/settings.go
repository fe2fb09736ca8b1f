// Package settings reads structs of settings from YAML and from the environment. The structs are the only description of the
// configuration: a key is a field's name in snake case, and an environment variable is the path of keys.
package settings

import (
	"encoding"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/enum"
)

// Kind is how a field is written.
type Kind int

// The kinds.
const (
	Unsettable Kind = iota // only in Go, such as a logger
	Scalar
	Duration
	Text    // an encoding.TextUnmarshaler
	List    // of scalars or texts
	Section // a struct
	Named   // a map from names to structs
	Listed  // a list of structs
)

// module contains the structs that are settings; a *tls.Config is not.
const module = "github.com/millrace-go/millrace"

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// kindOf returns how values of the type are written. A pointer is written like its target.
func kindOf(t reflect.Type) Kind {
	if t.Kind() == reflect.Pointer {
		if k := kindOf(t.Elem()); k != Named && k != List && k != Listed {
			return k
		}
		return Unsettable
	}
	switch {
	case t == durationType:
		return Duration
	case reflect.PointerTo(t).Implements(textType):
		return Text
	case t.Kind() == reflect.String, t.Kind() == reflect.Bool, t.Kind() == reflect.Float64, isInt(t), isUint(t):
		return Scalar
	case t.Kind() == reflect.Slice && kindOf(t.Elem()) == Scalar && t.Elem().Kind() != reflect.Uint8,
		t.Kind() == reflect.Slice && kindOf(t.Elem()) == Text:
		return List
	case t.Kind() == reflect.Slice && kindOf(t.Elem()) == Section:
		return Listed
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && kindOf(t.Elem()) == Section:
		return Named
	case t.Kind() == reflect.Struct && settable(t):
		return Section
	}
	return Unsettable
}

func isInt(t reflect.Type) bool  { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
func isUint(t reflect.Type) bool { return t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 }

// settable reports whether a struct holds settings: it is of this module and has a field that can be set.
func settable(t reflect.Type) bool {
	return (t.PkgPath() == "" || strings.HasPrefix(t.PkgPath(), module)) && len(Fields(t)) > 0
}

// Field is one setting of a struct.
type Field struct {
	Key    string
	Name   string // in Go, after the names of embedded structs
	Index  []int
	Kind   Kind
	Secret bool
	Type   reflect.Type
}

// Fields returns the settings of a struct, in order. Fields of embedded structs are included.
func Fields(t reflect.Type) []Field {
	var all []Field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Tag.Get("yaml") == "-" {
			continue
		}
		without := strings.Split(f.Tag.Get("without"), ",")
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			for _, inner := range Fields(f.Type) {
				if slices.Contains(without, inner.Name) {
					continue
				}
				inner.Index = append([]int{i}, inner.Index...)
				all = append(all, inner)
			}
			continue
		}
		k := kindOf(f.Type)
		if k == Unsettable {
			continue
		}
		key := f.Tag.Get("yaml")
		if key == "" {
			key = enum.Word(f.Name)
		}
		all = append(all, Field{Key: key, Name: f.Name, Index: []int{i}, Kind: k, Secret: f.Tag.Get("secret") == "true", Type: f.Type})
	}
	return all
}

// Absent returns the configured names that are not among names. Such a name belongs to another process with the same file, or is
// a typo: then the handler or schedule that was meant goes without its settings.
func Absent[T any](configured map[string]T, names []string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(configured)), func(name string) bool { return slices.Contains(names, name) })
}

// Nearest returns the known name that is most likely meant by a mistyped one, or "".
func Nearest(name string, known []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if max(len(k), len(name)) >= min(len(k), len(name))+least {
			continue
		}
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns how many letters must be inserted, deleted, replaced, or swapped with the next one.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// Child returns the value of a mapping's key, or nil.
func Child(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}
