package schema

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/internal/settings"
)

// Markdown describes the same as Object, for readers: a heading for each section, and a table of its keys.
func Markdown(root string, t reflect.Type, sections map[string]reflect.Type) (string, error) {
	p := &page{describer: describer{root: root, comments: map[string]map[string]string{}}, places: map[reflect.Type]string{}}
	p.section(nil, t, "")
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		p.section([]string{name}, sections[name], "The section of the broker `"+name+"`.")
	}
	return strings.TrimSpace(p.text.String()) + "\n", p.err
}

// page is the text that Markdown writes.
type page struct {
	describer
	text   strings.Builder
	places map[reflect.Type]string // where a struct's keys are listed
}

func (p *page) section(path []string, t reflect.Type, about string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(path) > 0 {
		fmt.Fprintf(&p.text, "\n## `%s`\n\n", strings.Join(path, "."))
	}
	if about != "" {
		fmt.Fprintf(&p.text, "%s\n\n", about)
	}
	if place, ok := p.places[t]; ok {
		fmt.Fprintf(&p.text, "The keys are those of [`%s`](#%s).\n", place, anchor(place))
		return
	}
	p.places[t] = strings.Join(path, ".")
	var below []settings.Field
	rows := 0
	for _, f := range settings.Fields(t) {
		if f.Kind == settings.Section || f.Kind == settings.Named {
			below = append(below, f)
			continue
		}
		if f.Kind == settings.Listed {
			below = append(below, f)
		}
		if rows++; rows == 1 {
			p.text.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n")
		}
		meaning, byDefault := split(p.comment(t, f.Index))
		byDefault = written(f.Kind, byDefault)
		if f.Secret {
			meaning += " It is a secret: errors, logs and printed configurations hide it."
		}
		fmt.Fprintf(&p.text, "| `%s` | %s | %s | %s |\n", f.Key, p.kind(path, f), cell(byDefault), cell(meaning))
	}
	for _, f := range below {
		inner, to := f.Type, append(slices.Clone(path), f.Key)
		about := p.comment(t, f.Index)
		if f.Kind == settings.Named {
			inner, to = inner.Elem(), append(to, "NAME")
		}
		if f.Kind == settings.Listed {
			inner, to, about = inner.Elem(), item(path, f), "One item of the list."
		}
		p.section(to, inner, cell(about))
	}
}

// item returns the path of a list's items.
func item(path []string, f settings.Field) []string { return append(slices.Clone(path), f.Key+"[]") }

// anchor returns the anchor of a heading.
func anchor(place string) string {
	return strings.ToLower(strings.NewReplacer(".", "", "[]", "").Replace(place))
}

// kind describes how a value is written.
func (p *page) kind(path []string, f settings.Field) string {
	if f.Kind == settings.Listed {
		place := strings.Join(item(path, f), ".")
		return fmt.Sprintf("list of [`%s`](#%s)", place, anchor(place))
	}
	value := p.value(f)
	if f.Kind == settings.Duration {
		return "duration"
	}
	if items, ok := value["items"].(map[string]any); ok {
		if of, ok := words(items); ok {
			return "list of " + of
		}
		return fmt.Sprintf("list of %ss", items["type"])
	}
	if of, ok := words(value); ok {
		return of
	}
	return fmt.Sprint(value["type"])
}

// words returns the words of an enumeration.
func words(value map[string]any) (string, bool) {
	all, ok := value["enum"].([]string)
	return "`" + strings.Join(all, "`, `") + "`", ok
}

var (
	defaultSentence  = regexp.MustCompile(`(?:^| )Default: (.*?)\.(?: ([A-Z].*)|)$`)
	requiredSentence = regexp.MustCompile(`(?:^| )Required\.( |$)`)
)

// split splits a comment into the meaning of the field and its default.
func split(comment string) (meaning, byDefault string) {
	if m := defaultSentence.FindStringSubmatch(comment); m != nil {
		meaning = strings.TrimSpace(strings.Replace(comment, m[0], " "+m[2], 1))
		return meaning, m[1]
	}
	if requiredSentence.MatchString(comment) {
		return strings.TrimSpace(requiredSentence.ReplaceAllString(comment, " ")), "required"
	}
	return comment, ""
}

var (
	goName   = regexp.MustCompile(`^([A-Z]\w*)`)
	duration = regexp.MustCompile(`(\d+) (ms|s|min|h)\b`)
	mebibyte = regexp.MustCompile(`(\d+) MiB`)
	thousand = regexp.MustCompile(`,(\d{3})\b`)
)

// written writes the values in a default as a file has them, so that they can be copied.
func written(kind settings.Kind, byDefault string) string {
	switch kind {
	case settings.Text:
		return goName.ReplaceAllStringFunc(byDefault, func(name string) string { return "`" + enum.Word(name) + "`" })
	case settings.Duration:
		return strings.ReplaceAll(duration.ReplaceAllString(byDefault, "`$1$2`"), "min`", "m`")
	case settings.Scalar:
		return mebibyte.ReplaceAllStringFunc(thousand.ReplaceAllString(byDefault, "$1"), func(size string) string {
			n, _ := strconv.Atoi(strings.TrimSuffix(size, " MiB"))
			return fmt.Sprintf("`%d` (%s)", n<<20, size)
		})
	default:
		return byDefault
	}
}

// cell escapes text for a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
