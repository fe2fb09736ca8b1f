package console

import (
	"reflect"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/bucket"
)

// Limit sets how many times each user may act, and see payloads, at once, and the interval after that.
func (c *Console) Limit(atOnce int, every time.Duration) {
	c.actions, c.reveals = bucket.New(atOnce, every), bucket.New(atOnce, every)
}

// Keeps reports whether the results that a database's pages share have the text in them.
func (c *Console) Keeps(database, text string) bool {
	seen := map[uintptr]bool{}
	var has func(v reflect.Value) bool
	has = func(v reflect.Value) bool {
		switch v.Kind() {
		case reflect.String:
			return strings.Contains(v.String(), text)
		case reflect.Pointer, reflect.Interface:
			if v.Kind() == reflect.Pointer && (v.IsNil() || seen[v.Pointer()]) {
				return false
			}
			if v.Kind() == reflect.Pointer {
				seen[v.Pointer()] = true
			}
			return v.Elem().IsValid() && has(v.Elem())
		case reflect.Slice, reflect.Array:
			if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
				return strings.Contains(string(v.Bytes()), text)
			}
			for i := range v.Len() {
				if has(v.Index(i)) {
					return true
				}
			}
		case reflect.Map:
			for _, k := range v.MapKeys() {
				if has(k) || has(v.MapIndex(k)) {
					return true
				}
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if has(v.Field(i)) {
					return true
				}
			}
		default: // it has no text
		}
		return false
	}
	return has(reflect.ValueOf(c.databases[database].Cache))
}
