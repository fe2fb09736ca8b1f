package settings

import (
	"encoding"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Hidden replaces a secret.
const Hidden = "(hidden)"

// Node returns the settings of a struct, or of the struct that target points to, as YAML that Decode reads. Secrets are hidden.
func Node(target any) *yaml.Node { return mapping(reflect.Indirect(reflect.ValueOf(target))) }

func mapping(v reflect.Value) *yaml.Node {
	return mappingOf(v, func(reflect.Value) bool { return true })
}

func mappingOf(v reflect.Value, shown func(reflect.Value) bool) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, f := range Fields(v.Type()) {
		if !shown(v.FieldByIndex(f.Index)) {
			continue
		}
		if value := valueNode(f, v.FieldByIndex(f.Index)); value != nil {
			node.Content = append(node.Content, Word(f.Key), value)
		}
	}
	return node
}

// valueNode returns nil for a value that is not set.
func valueNode(f Field, v reflect.Value) *yaml.Node {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch {
	case f.Secret && !v.IsZero():
		return Word(Hidden)
	case f.Kind == Section:
		return mapping(v)
	case f.Kind == Named:
		node := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		entries := map[string]reflect.Value{}
		for _, key := range v.MapKeys() {
			entries[key.String()] = v.MapIndex(key)
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			node.Content = append(node.Content, Word(name), mapping(entries[name]))
		}
		return node
	case f.Kind == Listed: // unset fields of a list's item are omitted
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.Len() {
			node.Content = append(node.Content, mappingOf(v.Index(i), func(f reflect.Value) bool { return !f.IsZero() }))
		}
		return node
	case f.Kind == List:
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		for i := range v.Len() {
			node.Content = append(node.Content, scalarNode(v.Index(i)))
		}
		return node
	case f.Kind == Duration:
		return Word(time.Duration(v.Int()).String())
	}
	return scalarNode(v)
}

func scalarNode(v reflect.Value) *yaml.Node {
	if level, ok := v.Interface().(slog.Level); ok {
		return Word(strings.ToLower(level.String()))
	}
	if m, ok := marshaler(v); ok {
		if b, err := m.MarshalText(); err == nil {
			return Word(string(b))
		}
	}
	plain := func(tag, value string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value} }
	switch t := v.Type(); {
	case t.Kind() == reflect.String:
		return Word(v.String())
	case t.Kind() == reflect.Bool:
		return plain("!!bool", strconv.FormatBool(v.Bool()))
	case isInt(t):
		return plain("!!int", strconv.FormatInt(v.Int(), 10))
	case isUint(t):
		return plain("!!int", strconv.FormatUint(v.Uint(), 10))
	}
	return plain("!!float", fmt.Sprint(v.Interface()))
}

// marshaler also finds a method with a pointer receiver.
func marshaler(v reflect.Value) (encoding.TextMarshaler, bool) {
	at := reflect.New(v.Type())
	at.Elem().Set(v)
	m, ok := at.Interface().(encoding.TextMarshaler)
	return m, ok
}

// Word returns a text node.
func Word(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
