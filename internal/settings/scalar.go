package settings

import (
	"encoding"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// pointed returns v. If v is a pointer, it makes v point to a new copy of its target and returns that, so that the old target does not
// change.
func pointed(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer {
		return v
	}
	made := reflect.New(v.Type().Elem())
	if !v.IsNil() {
		made.Elem().Set(v.Elem())
	}
	v.Set(made)
	return made.Elem()
}

// set sets a field to the value that a text stands for. An invalid text leaves the field unchanged.
func (r *Reader) set(o Origin, path, value string, f Field, v reflect.Value) {
	if f.Kind == List {
		r.setList(o, path, strings.FieldsFunc(value, func(c rune) bool { return c == ',' || c == ' ' }), f, v)
		return
	}
	r.origins[path] = o
	made := reflect.New(v.Type()).Elem()
	err := parse(value, pointed(made))
	switch {
	case f.Secret && value == Hidden:
		r.wrong(o, path, "is %s, which is shown in place of a secret: want the secret itself, or nothing", Hidden)
	case err == nil:
		v.Set(made)
	case f.Secret:
		r.wrong(o, path, "is not shown: want %s", wanted(f))
	default:
		r.wrong(o, path, "is %q: %s", value, remedy(err, f))
	}
}

func (r *Reader) setList(o Origin, path string, values []string, f Field, v reflect.Value) {
	r.origins[path] = o
	all := reflect.MakeSlice(v.Type(), len(values), len(values))
	for i, value := range values {
		if err := parse(value, all.Index(i)); err != nil {
			r.wrong(o, path, "has %q in it: %s", value, remedy(err, f))
			return
		}
	}
	v.Set(all)
}

// remedy returns what would be right: in an enumeration's own words, otherwise in the field's.
func remedy(err error, f Field) string {
	if text := err.Error(); (f.Kind == Text || f.Kind == List) && strings.HasPrefix(text, "want ") {
		return text
	}
	return "want " + wanted(f)
}

var errValue = errors.New("no value of this type")

func parse(value string, v reflect.Value) error {
	if v.Type() == durationType {
		d, err := time.ParseDuration(value)
		v.SetInt(int64(d))
		return err
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return t.UnmarshalText([]byte(value))
	}
	switch t, digits := v.Type(), strings.ReplaceAll(value, "_", ""); {
	case t.Kind() == reflect.String:
		v.SetString(value)
	case t.Kind() == reflect.Bool && (value == "true" || value == "false"):
		v.SetBool(value == "true")
	case t.Kind() == reflect.Float64:
		n, err := strconv.ParseFloat(value, 64)
		v.SetFloat(n)
		return err
	case isInt(t):
		n, err := strconv.ParseInt(digits, 10, t.Bits())
		v.SetInt(n)
		return err
	case isUint(t):
		n, err := strconv.ParseUint(digits, 10, t.Bits())
		v.SetUint(n)
		return err
	default:
		return errValue
	}
	return nil
}

// wanted describes what to write for a field.
func wanted(f Field) string {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case f.Kind == Section, f.Kind == Named:
		return "names with values behind them"
	case f.Kind == Listed:
		return "a list of sections, each with names and values, \"- name: value\""
	case f.Kind == List:
		return "a list of " + plural(t.Elem())
	case f.Kind == Duration:
		return `a duration such as "30s", "1m30s" or "24h"`
	case t == reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	case t == reflect.TypeFor[regexp.Regexp]():
		return "a regular expression"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "a number"
	case isInt(t) && t.Bits() < 64:
		return fmt.Sprintf("a whole number up to %d", 1<<(t.Bits()-1)-1)
	case isInt(t):
		return "a whole number"
	case isUint(t):
		return "a whole number from 0 on"
	}
	return "text"
}

func plural(t reflect.Type) string {
	switch {
	case reflect.PointerTo(t).Implements(textType):
		return "words"
	case t.Kind() == reflect.String:
		return "texts"
	}
	return "numbers"
}
