package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// troubles are links to what is not there, and tests that no file declares.
func (r *repository) troubles() (all []string) {
	for name, d := range r.documents {
		tell := func(line int, format string, args ...any) {
			all = append(all, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, args...))
		}
		for _, l := range d.links {
			if strings.Contains(l.target, "://") || strings.HasPrefix(l.target, "mailto:") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(l.target, "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(r.files, target); err != nil {
				tell(l.line, "[%s](%s): there is no such file", l.text, l.target)
				continue
			}
			// Lines move: only headings are linked to.
			if hasAnchor && !r.documents[target].anchors[anchor] {
				tell(l.line, "[%s](%s): the file has no such heading", l.text, l.target)
			}
			if tests, ok := r.tests[target]; ok {
				for _, test := range testName.FindAllString(l.text+" "+l.title, -1) {
					if !tests[test] {
						tell(l.line, "[%s](%s): the file declares no %s", l.text, l.target, test)
					}
				}
			}
		}
		for _, test := range d.tests {
			if !r.named[test.text] {
				tell(test.line, "there is no %s", test.text)
			}
		}
	}
	return all
}

func TestLinksAndTests(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	require.Contains(t, r.documents, "README.md")
	require.Contains(t, r.documents, "bench/README.md")
	for _, trouble := range r.troubles() {
		t.Error(trouble)
	}
}

func TestTroublesAreFound(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	r, err := read(fstest.MapFS{
		"README.md": file("# A\n[good](docs/b.md#the-b-of-bees) [out](https://example.com/#x) [own](#a)\n[one](docs/c.md)\n" +
			"[two\nlines](docs/b.md#nothing)\n```\n# no heading [no](link)\n```\n[own](#no-heading-nolink) [dir](docs)\n" +
			"[a](b_test.go \"TestIs\") [b](b_test.go \"TestElsewhere\") <img alt=\"x\" src=\"docs/b.md\">\n<source srcset=\"docs/c.svg\">\n"),
		"docs/b.md": file("## The `B` of *bees*!\n## Twice\n## Twice\n[again](#twice-1) [TestIs](../b_test.go)\n" +
			"[`TestElsewhere`](../b_test.go) `TestNowhere` `Testing`\n[line](../b_test.go#L1)\n"),
		"b_test.go": file("func TestIs(t *testing.T) {}\n"),
		"c_test.go": file("func TestElsewhere(t *testing.T) {}\n"),
		".git/x.md": file("[no](where)\n"),
	})
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{
		"README.md:3: [one](docs/c.md): there is no such file",
		"README.md:4: [two\nlines](docs/b.md#nothing): the file has no such heading",
		"README.md:9: [own](#no-heading-nolink): the file has no such heading",
		"README.md:10: [b](b_test.go): the file declares no TestElsewhere",
		"README.md:11: [a picture](docs/c.svg): there is no such file",
		"docs/b.md:5: [`TestElsewhere`](../b_test.go): the file declares no TestElsewhere",
		"docs/b.md:5: there is no TestNowhere",
		"docs/b.md:6: [line](../b_test.go#L1): the file has no such heading",
	}, r.troubles())
}
