package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/docs"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	input := []record{{0, "0.0"}, {0, "0.1"}, {1, "1.0"}, {1, "1.1"}}
	well := []record{{2, "1.0"}, {2, "0.0"}, {2, "0.1"}, {1, "1.1"}}
	for name, test := range map[string]struct {
		output, concurrent []record
		ordered            bool
		hanging            int64
		want               string
	}{
		"good":              {output: well, ordered: true, want: "good"},
		"duplicate":         {output: append(well[:4:4], record{1, "1.1"}), want: "BAD   1 duplicates;"},
		"missing":           {output: well[:2], want: "BAD   2 missing;"},
		"foreign":           {output: append(well[:4:4], record{1, "2.1"}), want: "BAD   1 from nowhere;"},
		"out of order":      {output: []record{{2, "1.0"}, {2, "0.1"}, {2, "0.0"}, {1, "1.1"}}, ordered: true, want: "BAD   1 out of order;"},
		"order is not all":  {output: []record{{2, "1.0"}, {2, "0.1"}, {2, "0.0"}, {1, "1.1"}}, want: "good"},
		"read twice":        {output: well, concurrent: append(well[:4:4], well[0]), want: "BAD   1 duplicates read along;"},
		"not read":          {output: well, concurrent: well[:3], want: "BAD   1 missing in what was read along;"},
		"left hanging":      {output: well, hanging: 7, want: "BAD   7 offsets behind a hanging transaction;"},
		"another partition": {output: []record{{2, "1.1"}, {1, "1.0"}, {2, "0.0"}, {2, "0.1"}}, ordered: true, want: "good"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			concurrent := test.concurrent
			if concurrent == nil {
				concurrent = test.output
			}
			if name != "read twice" && name != "not read" && !strings.HasPrefix(test.want, "good") {
				concurrent = well
			}
			v := judge(input, test.output, concurrent, test.ordered)
			v.hanging = test.hanging
			assert.Contains(t, v.line("test"), test.want)
			assert.Equal(t, test.want == "good", v.good())
		})
	}
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-messages 5 -delivery twice": "-messages is 5: want 100 to 10000000\n-delivery is \"twice\": want transactional, at-least-once or franz-go",
		"-run nothing":                `-run is "nothing", which no test's name matches`,
		"-run (":                      "-run: error parsing regexp",
		"now":                         `unexpected argument "now"`,
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, exitTrouble, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), want)
		assert.Empty(t, stdout.String())
	}
	assert.Len(t, chosen(regexp.MustCompile("")), 8)
	assert.Len(t, chosen(regexp.MustCompile("^transactions, hard bounce of copiers$")), 1)
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { run(t.Context(), args, out, out) })
}
