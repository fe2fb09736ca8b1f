// Package docs checks that what the documentation names exists: files, headings, tests, commands and their flags.
package docs

import (
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// document is a Markdown file, reduced to what it names.
type document struct {
	name    string // slash-separated, relative to the repository's root
	anchors map[string]bool
	links   []link
	tests   []mention // names of tests, in links too
	shell   []mention // lines of shell code, and inline code
}

type mention struct {
	text string
	line int
}

type link struct {
	mention
	target string
	title  string // shown as a tooltip
}

var (
	heading  = regexp.MustCompile(`^#{1,6} +(.*)$`)
	fence    = regexp.MustCompile("^\\s*(?:```|~~~)(.*)$")
	linked   = regexp.MustCompile(`\[([^\[\]]*)\]\(([^()\s]+)(?: "([^"]*)")?\)`)
	pictured = regexp.MustCompile(`<(?:img|source)\b[^>]*\b(?:src|srcset)="([^"]+)"`)
	inline   = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`\b(?:Test|Example|Benchmark|Fuzz)[A-Z]\w*\b`)
)

// shells are the languages of fenced blocks that hold commands.
var shells = map[string]bool{"": true, "sh": true, "bash": true, "shell": true, "console": true}

func parse(name, text string) document {
	d := document{name: name, anchors: map[string]bool{}}
	prose := strings.Split(text, "\n")
	within, language := false, ""
	for i, line := range prose {
		if opening := fence.FindStringSubmatch(line); opening != nil {
			within = !within
			language, _, _ = strings.Cut(strings.TrimSpace(opening[1]), " ") // the rest of the info string is for tests
			prose[i] = ""
			continue
		}
		if within {
			if shells[language] {
				d.shell = append(d.shell, mention{line, i + 1})
			}
			prose[i] = "" // code has no links or headings
			continue
		}
		if found := heading.FindStringSubmatch(line); found != nil {
			d.heading(found[1])
		}
	}
	// In one piece, because links and inline code may continue on the next line.
	all := strings.Join(prose, "\n")
	at := func(offset int) int { return 1 + strings.Count(all[:offset], "\n") }
	for _, m := range linked.FindAllStringSubmatchIndex(all, -1) {
		l := link{mention: mention{all[m[2]:m[3]], at(m[0])}, target: all[m[4]:m[5]]}
		if m[6] >= 0 {
			l.title = all[m[6]:m[7]]
		}
		d.links = append(d.links, l)
	}
	for _, m := range pictured.FindAllStringSubmatchIndex(all, -1) {
		d.links = append(d.links, link{mention: mention{"a picture", at(m[0])}, target: all[m[2]:m[3]]})
	}
	for _, m := range inline.FindAllStringSubmatchIndex(all, -1) {
		d.shell = append(d.shell, mention{strings.ReplaceAll(all[m[2]:m[3]], "\n", " "), at(m[0])})
	}
	for _, m := range testName.FindAllStringIndex(all, -1) {
		d.tests = append(d.tests, mention{all[m[0]:m[1]], at(m[0])})
	}
	return d
}

// heading adds the anchor that GitHub generates for a heading; a repeated heading gets a number.
func (d *document) heading(text string) {
	text = linked.ReplaceAllString(text, "$1")
	slug := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(text))
	unique := slug
	for n := 1; d.anchors[unique]; n++ {
		unique = slug + "-" + strconv.Itoa(n)
	}
	d.anchors[unique] = true
}

// repository is the documents of a file tree, and the tests by the files that declare them.
type repository struct {
	files     fs.FS
	documents map[string]document
	tests     map[string]map[string]bool // file → names
	named     map[string]bool            // all of them
	checked   map[string]bool            // folders with a test that calls Commands
}

var goTest = regexp.MustCompile(`go test ((?:-\w+ )*)(\./\S+) -run (?:'([^']*)'|(\S+))`)

// noTests returns what is wrong with a line's "go test": a package without a test that one of the patterns matches.
func (r *repository) noTests(line string) string {
	for _, m := range goTest.FindAllStringSubmatch(line, -1) {
		folder, below := strings.CutSuffix(m[2], "/...")
		for _, pattern := range strings.Split(m[3]+m[4], "|") {
			runs, err := regexp.Compile(pattern)
			if err != nil || !r.declares(folder, below, runs) {
				return m[2] + " has no test that matches " + pattern
			}
		}
	}
	return ""
}

func (r *repository) declares(folder string, below bool, runs *regexp.Regexp) bool {
	for file, names := range r.tests {
		in := "./" + path.Dir(file)
		if in != folder && (!below || !strings.HasPrefix(in, folder+"/")) {
			continue
		}
		for name := range names {
			if runs.MatchString(name) {
				return true
			}
		}
	}
	return false
}

var declared = regexp.MustCompile(`(?m)^func ((?:Test|Example|Benchmark|Fuzz)\w*)\(`)

func read(files fs.FS) (*repository, error) {
	r := &repository{files: files, documents: map[string]document{}, tests: map[string]map[string]bool{}, named: map[string]bool{}, checked: map[string]bool{}}
	return r, fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if base := path.Base(name); base != "." && strings.HasPrefix(base, ".") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".md") {
			r.documents[name] = parse(name, string(content))
			return nil
		}
		if strings.Contains(string(content), "docs.Commands(t, ") {
			r.checked["./"+path.Dir(name)] = true
		}
		r.tests[name] = map[string]bool{}
		for _, m := range declared.FindAllStringSubmatch(string(content), -1) {
			r.tests[name][m[1]], r.named[m[1]] = true, true
		}
		return nil
	})
}
