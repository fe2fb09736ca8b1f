package settings

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// Environ reads the settings of the struct that target points to from environment variables. A variable's name is the prefix and the path
// of keys, in upper case and joined by "_". Of a map, Environ knows the existing names; the variable of the map itself holds YAML, {name:
// {key: value}}, and adds names. The variable of a list of structs holds YAML too, [{key: value}], and replaces the list. Environ returns
// the names of the variables that it knows, set or not.
func (r *Reader) Environ(lookup func(string) (string, bool), prefix, path string, target any) []string {
	e := environ{Reader: r, lookup: lookup}
	e.section(prefix, path, reflect.ValueOf(target).Elem())
	return e.known
}

type environ struct {
	*Reader
	lookup func(string) (string, bool)
	known  []string
	found  int
}

func (e *environ) section(prefix, path string, v reflect.Value) {
	for _, f := range Fields(v.Type()) {
		name, at, fv := prefix+"_"+Variable(f.Key), join(path, f.Key), v.FieldByIndex(f.Index)
		switch {
		case f.Kind == Section && fv.Kind() == reflect.Pointer:
			e.optional(name, at, fv)
		case f.Kind == Section:
			e.section(name, at, fv)
		case f.Kind == Named:
			e.named(name, at, fv)
		case f.Kind == Listed:
			e.fromYAML(name, at, "[{key: value}]", func(node *yaml.Node) { e.field(node, at, f, fv) })
		default:
			if value, ok := e.get(name, at); ok {
				e.set(Origin{Env: name}, at, value, f, fv)
			}
		}
	}
}

// get returns the variable. An empty variable counts as not set, because deployments often define variables that they do not use.
func (e *environ) get(name, path string) (string, bool) {
	again := slices.Contains(e.known, name)
	e.known = append(e.known, name)
	value, _ := e.lookup(name)
	if value == "" {
		return "", false
	}
	if again { // names in maps that differ only in characters that become "_"
		e.wrong(Origin{Env: name}, path, "is meant by the variable of another name, too: want names that differ in letters or digits, or the setting in the file")
	}
	e.found++
	return value, true
}

// optional handles a pointer to a struct, which stays nil unless one of its settings is set.
func (e *environ) optional(name, path string, v reflect.Value) {
	made := reflect.New(v.Type()).Elem()
	made.Set(v)
	before := e.found
	e.section(name, path, pointed(made))
	if e.found > before {
		v.Set(made)
	}
}

// fromYAML reads a variable that holds YAML in this form.
func (e *environ) fromYAML(name, path, form string, read func(*yaml.Node)) {
	value, ok := e.get(name, path)
	if !ok {
		return
	}
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(value), &node); err != nil || len(node.Content) == 0 {
		e.wrong(Origin{Env: name}, path, "is no YAML: want %s", form)
		return
	}
	e.variable = name
	read(node.Content[0])
	e.variable = ""
}

func (e *environ) named(name, path string, v reflect.Value) {
	e.fromYAML(name, path, "{name: {key: value}}", func(node *yaml.Node) { e.Reader.named(node, path, v) })
	if v.Len() > 0 {
		v.Set(clone(v))
	}
	for _, key := range v.MapKeys() {
		entry := reflect.New(v.Type().Elem()).Elem()
		entry.Set(v.MapIndex(key))
		e.section(name+"_"+Variable(key.String()), join(path, key.String()), entry)
		v.SetMapIndex(key, entry)
	}
}

// Variable converts a key, or a name in a map, to its part of an environment variable's name.
func Variable(key string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return unicode.ToUpper(c)
		}
		return '_'
	}, key)
}
