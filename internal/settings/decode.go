package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Origin is where a setting was set.
type Origin struct {
	Line int    // in the file; 0: not there
	Env  string // the environment variable
}

// Problem is an error in a configuration.
type Problem struct {
	Origin Origin
	Path   string // keys, joined by dots
	Text   string // "is …: want …"
}

// Reader collects where settings were set and what is wrong with them. It is not safe for concurrent use.
type Reader struct {
	Problems []Problem
	origins  map[string]Origin // by path
	variable string            // the variable that is being read, if not a file
}

// NewReader returns a Reader.
func NewReader() *Reader { return &Reader{origins: map[string]Origin{}} }

func (r *Reader) wrong(o Origin, path, format string, args ...any) {
	r.Problems = append(r.Problems, Problem{Origin: o, Path: path, Text: fmt.Sprintf(format, args...)})
}

// at returns the origin of a node.
func (r *Reader) at(node *yaml.Node) Origin {
	if r.variable != "" {
		return Origin{Env: r.variable}
	}
	return Origin{Line: node.Line}
}

// Origin returns where the setting of that path, or a section that contains it, was set. It returns the zero Origin if nowhere.
func (r *Reader) Origin(path string) Origin {
	for {
		if o, ok := r.origins[path]; ok {
			return o
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return Origin{}
		}
		path = path[:i]
	}
}

// Decode reads a mapping into the struct that target points to. besides are keys of the mapping that it ignores.
func (r *Reader) Decode(node *yaml.Node, path string, target any, besides ...string) {
	r.section(node, path, reflect.ValueOf(target).Elem(), besides)
}

// entries calls each with the keys and values of a mapping. Any other node is an error.
func (r *Reader) entries(node *yaml.Node, path string, each func(key, value *yaml.Node)) {
	node = resolved(node)
	if empty(node) {
		return
	}
	if node.Kind != yaml.MappingNode {
		r.wrong(r.at(node), path, "is %s: want names with values behind them, \"name: value\"", shown(node))
		return
	}
	if path != "" {
		r.origins[path] = r.at(node)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.wrong(r.at(key), path, "has %s for a name: want text", shown(key))
			continue
		}
		if key.Tag == "!!merge" {
			r.wrong(r.at(key), join(path, key.Value), "is a merge, which is not read: want the keys themselves, or an alias for the whole value")
			continue
		}
		if line, twice := seen[key.Value]; twice {
			r.wrong(r.at(key), join(path, key.Value), "is there twice, in line %d too: want it once", line)
			continue
		}
		seen[key.Value] = key.Line
		each(key, value)
	}
}

func (r *Reader) section(node *yaml.Node, path string, v reflect.Value, besides []string) {
	fields := Fields(v.Type())
	r.entries(node, path, func(key, value *yaml.Node) {
		if slices.Contains(besides, key.Value) {
			return
		}
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Key == key.Value })
		if i < 0 && empty(resolved(value)) && slices.ContainsFunc(fields, func(f Field) bool { return f.Secret }) {
			r.wrong(r.at(key), path, "has a name without a value, which is not shown, lest it be half a secret: want quotes around a text with a comma")
			return
		}
		if i < 0 {
			r.unknown(r.at(key), path, key.Value, append(keys(fields), besides...))
			return
		}
		r.origins[join(path, key.Value)] = r.at(key)
		r.field(value, join(path, key.Value), fields[i], v.FieldByIndex(fields[i].Index))
	})
}

func (r *Reader) unknown(o Origin, path, key string, known []string) {
	if n := Nearest(key, known); n != "" {
		r.wrong(o, join(path, key), "is unknown: did you mean %s?", n)
		return
	}
	slices.Sort(known)
	r.wrong(o, join(path, key), "is unknown: want one of %s", strings.Join(known, ", "))
}

func (r *Reader) field(node *yaml.Node, path string, f Field, v reflect.Value) {
	node = resolved(node)
	if empty(node) {
		return
	}
	switch {
	case f.Kind == Section:
		r.section(node, path, pointed(v), nil)
	case f.Kind == Named:
		r.named(node, path, v)
	case f.Kind == List && node.Kind == yaml.SequenceNode:
		r.list(node, path, f, v)
	case f.Kind == Listed && node.Kind == yaml.SequenceNode:
		r.listed(node, path, v)
	case f.Kind == Listed:
		r.wrong(r.at(node), path, "is %s: want %s", shown(node), wanted(f))
	case node.Kind != yaml.ScalarNode:
		r.wrong(r.at(node), path, "is %s: want %s", shown(node), wanted(f))
	default:
		r.set(r.at(node), path, node.Value, f, v)
	}
}

func (r *Reader) named(node *yaml.Node, path string, v reflect.Value) {
	v.Set(clone(v))
	r.entries(node, path, func(key, value *yaml.Node) {
		entry, name := reflect.New(v.Type().Elem()).Elem(), reflect.ValueOf(key.Value)
		if had := v.MapIndex(name); had.IsValid() {
			entry.Set(had)
		}
		r.origins[join(path, key.Value)] = r.at(key)
		r.section(value, join(path, key.Value), entry, nil)
		v.SetMapIndex(name, entry)
	})
}

func (r *Reader) list(node *yaml.Node, path string, f Field, v reflect.Value) {
	all := make([]string, 0, len(node.Content))
	for _, item := range node.Content {
		if item = resolved(item); item.Kind != yaml.ScalarNode {
			r.wrong(r.at(item), path, "has %s in it: want %s", shown(item), wanted(f))
			return
		}
		all = append(all, item.Value)
	}
	r.setList(r.at(node), path, all, f, v)
}

// listed reads a list of sections. The path of the first one ends with "[0]".
func (r *Reader) listed(node *yaml.Node, path string, v reflect.Value) {
	r.origins[path] = r.at(node)
	all := reflect.MakeSlice(v.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		r.origins[at] = r.at(item)
		r.section(item, at, all.Index(i), nil)
	}
	v.Set(all)
}

// clone copies a map, because the existing one may be shared with other configurations.
func clone(v reflect.Value) reflect.Value {
	made := reflect.MakeMap(v.Type())
	for _, key := range v.MapKeys() {
		made.SetMapIndex(key, v.MapIndex(key))
	}
	return made
}

// resolved returns the node that an alias refers to.
func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func empty(node *yaml.Node) bool {
	return node.Kind == 0 || node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

// shown describes a node without its value, which may be a secret in the wrong place.
func shown(node *yaml.Node) string {
	switch resolved(node).Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "a single value"
	}
}

func keys(fields []Field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.Key
	}
	return all
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
