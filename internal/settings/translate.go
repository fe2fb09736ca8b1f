package settings

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// goPath matches a field's name in an error of a Validate function: Config.Consumers["x"].Prefetch.
var goPath = regexp.MustCompile(`\b\w*Config((?:\.[A-Z]\w*|\["[^"]*"\]|\[\d+\])+)`)

// goStep matches one step of a goPath.
var goStep = regexp.MustCompile(`\.([A-Z]\w*)|\["([^"]*)"\]|(\[\d+\])`)

// Refuse records an error of a Validate function about the struct that target points to. It translates Go paths to paths of the
// configuration. An error that does not begin with a path is about the whole struct.
func (r *Reader) Refuse(err error, path string, target any) {
	if err == nil {
		return
	}
	t := reflect.TypeOf(target).Elem()
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSuffix(line, "\n")
		at, rest := path, line
		if m := goPath.FindStringSubmatchIndex(line); m != nil && m[0] == 0 {
			if keys, ok := translate(t, line[m[2]:m[3]]); ok {
				at, rest = join(path, keys), strings.TrimSpace(line[m[1]:])
			}
		}
		rest = goPath.ReplaceAllStringFunc(rest, func(found string) string {
			if keys, ok := translate(t, goPath.FindStringSubmatch(found)[1]); ok {
				return join(path, keys)
			}
			return found
		})
		r.Problems = append(r.Problems, Problem{Origin: r.Origin(at), Path: at, Text: rest})
	}
}

// translate returns the keys of a Go path through the type, joined by dots.
func translate(t reflect.Type, path string) (string, bool) {
	keys := ""
	for _, step := range goStep.FindAllStringSubmatch(path, -1) {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if step[3] != "" {
			if t.Kind() != reflect.Slice {
				return "", false
			}
			t, keys = t.Elem(), keys+step[3]
			continue
		}
		if step[1] == "" {
			if t.Kind() != reflect.Map {
				return "", false
			}
			t, keys = t.Elem(), join(keys, step[2])
			continue
		}
		if t.Kind() != reflect.Struct {
			return "", false
		}
		fields := Fields(t)
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == step[1] })
		if i < 0 {
			return "", false
		}
		t, keys = fields[i].Type, join(keys, fields[i].Key)
	}
	return keys, true
}
