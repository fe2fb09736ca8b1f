// Package schema describes structs of settings as a JSON schema, for editors. The descriptions are the fields' comments. It reads the
// sources, so it is for tests and generators.
package schema

import (
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/millrace-go/millrace/internal/settings"
)

const module = "github.com/millrace-go/millrace/"

// Object returns the schema of t, a struct, with the further properties in sections. root is the folder of go.mod.
func Object(root string, t reflect.Type, sections map[string]reflect.Type) (map[string]any, error) {
	d := &describer{root: root, comments: map[string]map[string]string{}}
	object := d.object(t)
	properties := object["properties"].(map[string]any) //nolint:forcetypeassert // object made it
	for name, section := range sections {
		properties[name] = d.object(section)
	}
	object["$schema"] = "http://json-schema.org/draft-07/schema#" // the version that editors support
	return object, d.err
}

type describer struct {
	root     string
	comments map[string]map[string]string // by package, then "Type.Field"
	err      error
}

func (d *describer) object(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	properties := map[string]any{}
	for _, f := range settings.Fields(t) {
		property := d.value(f)
		if text := d.comment(t, f.Index); text != "" {
			property["description"] = text
		}
		properties[f.Key] = property
	}
	return map[string]any{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
}

func (d *describer) value(f settings.Field) map[string]any {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch f.Kind {
	case settings.Section:
		return d.object(t)
	case settings.Named:
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": d.object(t.Elem())}
	case settings.Listed:
		return map[string]any{"type": []string{"array", "null"}, "items": d.object(t.Elem())}
	case settings.List:
		if reflect.PointerTo(t.Elem()).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return map[string]any{"type": "array", "items": text(t.Elem())}
		}
		return map[string]any{"type": "array", "items": scalar(t.Elem())}
	case settings.Duration:
		return map[string]any{"type": "string", "pattern": `^-?(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`}
	case settings.Text:
		return text(t)
	case settings.Scalar, settings.Unsettable:
	}
	return scalar(t)
}

func scalar(t reflect.Type) map[string]any {
	name := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number"}[t.Kind()]
	if name == "" {
		name = "integer"
	}
	return map[string]any{"type": name}
}

// text describes a text. It knows the words of an enumeration: those of the values from 0 on.
func text(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[slog.Level]() {
		return map[string]any{"enum": []string{"debug", "info", "warn", "error"}}
	}
	var words []string
	for i := int64(0); t.Kind() == reflect.Int; i++ {
		v := reflect.New(t).Elem()
		v.SetInt(i)
		m, ok := v.Interface().(encoding.TextMarshaler)
		if !ok {
			break
		}
		word, err := m.MarshalText()
		if err != nil {
			return map[string]any{"enum": words}
		}
		words = append(words, string(word))
	}
	return map[string]any{"type": "string"}
}

// comment returns the comment of the field, which may belong to an embedded struct.
func (d *describer) comment(t reflect.Type, index []int) string {
	for _, i := range index[:len(index)-1] {
		t = t.Field(i).Type
	}
	dir, ours := strings.CutPrefix(t.PkgPath(), module)
	if !ours {
		return ""
	}
	if d.comments[dir] == nil {
		found, err := comments(d.root + "/" + dir)
		if err != nil && d.err == nil {
			d.err = fmt.Errorf("read the comments of %s: %w", dir, err)
		}
		d.comments[dir] = found
	}
	return d.comments[dir][t.Name()+"."+t.Field(index[len(index)-1]).Name]
}
