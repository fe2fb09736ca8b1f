package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// canned scenarios measure nothing.
func canned(t *testing.T) []scenario {
	of := func(name string, answer func() (*report, error)) scenario {
		return scenario{name: name, brokers: true, run: func(context.Context, *environment) (*report, error) { return answer() }}
	}
	require.Contains(t, targets["relay-drain"], "vs_skip_locked")
	return []scenario{
		of("relay-drain", func() (*report, error) {
			return &report{
				title: "a backlog", facts: []string{"PostgreSQL 15.1 (here), fsync=off"}, unit: "rows/s",
				rates: []rates{{name: "relay", note: "one | relay", perRun: []float64{1000, 3000, 2000}, busy: []float64{0.5, 0.97, 1}}},
				ratios: []ratios{
					{name: "vs_skip_locked", perRun: []float64{1.996, 1, 3}}, // 2.00 as it is shown
					{name: "vs_watermill_sql", perRun: []float64{6}},         // by the target of -quick
					{name: "vs_forwarder", perRun: []float64{9.99}},
					{name: "cost_large_vs_small", perRun: []float64{2.1}},
					{name: "vs_oagudo", perRun: []float64{0.5}},
				},
			}, nil
		}),
		of("relay-latency", func() (*report, error) {
			return &report{title: "waiting", ratios: []ratios{{"nudge_p99_ms", "ms", []float64{4}}, {"other_process_p99_ms", "ms", []float64{20}}}}, nil
		}),
		of("pubsub", func() (*report, error) { return nil, errors.New("the broker <is> away\nreally") }),
	}
}

// cannedAttacks attack nothing.
func cannedAttacks() []attack {
	of := func(name string, a attacked, err error) attack {
		return attack{name: name, command: "chaos -of " + name, run: func(context.Context, bool, io.Writer) (attacked, error) { return a, err }}
	}
	full := of("sabotage", attacked{good: true}, nil)
	full.onlyFull = true
	return []attack{
		of("chaos on a", attacked{good: true, text: "\nkill <relay>  7\n", image: "<svg id=timeline></svg>"}, nil),
		of("chaos on b", attacked{text: "lost 1"}, nil), of("chaos on c", attacked{}, errors.New("no broker")), full,
	}
}

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "REPORT.md")
	var stdout, stderr bytes.Buffer
	c := command{scenarios: canned(t), attacks: cannedAttacks(), stdout: &stdout, stderr: &stderr}
	assert.Equal(t, exitFailed, c.run(t.Context(), []string{"report", "-quick", "-out", file}), "a scenario failed")
	assert.Contains(t, stdout.String(), "4 of 13 targets met")
	assert.Contains(t, stderr.String(), "== 3 of 3: pubsub")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(content)
	for _, want := range []string{
		"claim nothing from it", "`cd bench && go run . report -quick` on 20", "**4 of 13 targets met.**",
		"\n- relay-drain `vs_forwarder` is 9.99, asked is ≥ 10\n", "\n- relay-drain `held_xmin_vs_free` was not measured\n", "\n- pubsub failed\n",
		"\n- PostgreSQL 15.1 (here), fsync=off\n", "`go run . relay-drain -quick`",
		"\n- chaos on a: nothing is wrong\n- chaos on b found something\n- chaos on c could not run: no broker\n",
		"`go run . chaos -of chaos on a -quick`, 0s\n\n**chaos on a: nothing is wrong.**\n\n```text\nkill <relay>  7\n```\n", "(queuebench/RESULTS.md)",
		"\n| `vs_skip_locked` | 2.00 | 1.00 | 3.00 | 3 |  | ≥ 2 | met |\n",
		"\n| `vs_watermill_sql` | 6.00 | 6.00 | 6.00 | 1 |  | ≥ 5 | met |\n",
		"\n| `cost_large_vs_small` | 2.10 | 2.10 | 2.10 | 1 |  | ≤ 2 | **missed** |\n",
		"\n| `vs_oagudo` | 0.50 | 0.50 | 0.50 | 1 |  |  |  |\n",
		"\n| `other_process_p99_ms` | 20.00 | 20.00 | 20.00 | 1 | ms | ≤ 20 | met |\n",
		"\n| relay | 2,000 | 1,000 | 3,000 | 3 | 97% | one \\| relay |\n",
		"## pubsub\n", "**Failed, so there are no figures**: the broker &lt;is> away\n",
		"| Go | go", "| processors | ", "| revision of Millrace | ",
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "NaN")
	stated, ofQuick := reported(text)
	assert.True(t, ofQuick)
	assert.Equal(t, map[string]string{
		"relay-drain vs_skip_locked": "≥ 2", "relay-drain vs_watermill_sql": "≥ 5", "relay-drain vs_forwarder": "≥ 10",
		"relay-drain cost_large_vs_small": "≤ 2", "relay-drain vs_oagudo": "",
		"relay-latency nudge_p99_ms": "≤ 5", "relay-latency other_process_p99_ms": "≤ 20",
	}, stated)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// The page has the figures of the text, and plots of each run.
func TestReportPage(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	c := command{scenarios: canned(t), attacks: cannedAttacks(), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
	require.Equal(t, exitFailed, c.run(t.Context(), []string{"report", "-quick", "-out", filepath.Join(folder, "REPORT.md")}))
	content, err := os.ReadFile(filepath.Join(folder, "REPORT.html"))
	require.NoError(t, err)
	text := string(content)
	for _, want := range []string{
		"claim nothing from it", "<strong>4 of 13 targets met.</strong>", "<li>relay-drain vs_forwarder is 9.99, asked is ≥ 10</li>",
		`>2.00 (≥ 2)</text>`, `>4.00 ms (≤ 5)</text>`, `>vs_oagudo</text>`, `>2,000 (97% busy)</text>`, "the broker &lt;is&gt; away", `<svg id=timeline></svg>`, `<pre>kill &lt;relay&gt;  7</pre>`, `<li>chaos on b found something</li>`, `<td class="pale">one | relay</td>`, "PostgreSQL 15.1 (here), fsync=off",
	} {
		assert.Contains(t, text, want)
	}
	assert.Equal(t, 6, strings.Count(text, `class="dot met"`), "three runs of vs_skip_locked, one of vs_watermill_sql and of each latency")
	assert.NotContains(t, text, "ZgotmplZ")
	assert.NotContains(t, text, "NaN")
}

// At full size other targets hold, and a run without failures exits with 0.
func TestReportAtFullSize(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "REPORT.md")
	c := command{scenarios: canned(t)[:2], stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
	require.Equal(t, exitOK, c.run(t.Context(), []string{"report", "-out", file}))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(content), "| ≥ 50 | **missed** |")
	assert.NotContains(t, string(content), "quick")

	c.attacks = cannedAttacks()[3:]
	require.Equal(t, exitOK, c.run(t.Context(), []string{"report", "-out", file}))
	content, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(content), "**sabotage: nothing is wrong.**")
	c.attacks = cannedAttacks()[1:2]
	assert.Equal(t, exitFailed, c.run(t.Context(), []string{"report", "-out", file}), "an attack found something")
}

// One that measures.
func TestReportOfAScenario(t *testing.T) {
	setenv(t)
	file := filepath.Join(t.TempDir(), "REPORT.md")
	write, ok := find(tiny(), outboxWrite.name)
	require.True(t, ok)
	var stderr bytes.Buffer
	c := command{scenarios: []scenario{write}, stdout: &bytes.Buffer{}, stderr: &stderr}
	require.Equal(t, exitOK, c.run(t.Context(), []string{"report", "-quick", "-out", file}), stderr.String())
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	for ratio, target := range asked(write.name, true) {
		assert.Regexp(t, "`"+ratio+"` .* "+regexp.QuoteMeta(target.text(true))+" \\| (met|\\*\\*missed\\*\\*)", string(content))
	}
	assert.Contains(t, string(content), "- PostgreSQL ")
}

func TestReportThatIsNotWritten(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "REPORT.md")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := canned(t)[:1]
	interrupted[0].run = func(context.Context, *environment) (*report, error) {
		cancel()
		return nil, context.Canceled
	}
	var stderr bytes.Buffer
	c := command{scenarios: interrupted, stdout: &bytes.Buffer{}, stderr: &stderr}
	assert.Equal(t, exitInterrupted, c.run(ctx, []string{"report", "-out", file}))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "old", string(content))
	assert.Equal(t, exitFailed, c.run(t.Context(), []string{"report", "-out", filepath.Join(folder, "none", "REPORT.md")}))
	assert.Equal(t, exitUsage, c.run(t.Context(), []string{"report", "pubsub"}))
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

var (
	askedCell = regexp.MustCompile("^([≥≤]) ([\\d.]+)(?: \\(`-quick`: [≥≤] ([\\d.]+)\\))?$")
	namedCell = regexp.MustCompile("`([a-z0-9_]+)`")
)

// reported are the targets that a report names, by scenario and ratio.
func reported(text string) (stated map[string]string, quick bool) {
	stated = map[string]string{}
	section := ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(name)
		}
		if row := reportedRow.FindStringSubmatch(line); row != nil {
			stated[section+" "+row[1]] = strings.TrimSpace(row[2])
		}
	}
	return stated, strings.Contains(text, "**This is a quick run")
}

var reportedRow = regexp.MustCompile("^\\| `(\\w+)` \\|(?:[^|]*\\|){5}([^|]*)\\|")

// The report that is kept was written when the targets were what they are now.
func TestReportThatIsKept(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("REPORT.md")
	if errors.Is(err, fs.ErrNotExist) {
		return // nothing is claimed, then
	}
	require.NoError(t, err)
	stated, quick := reported(string(content))
	require.NotEmpty(t, stated)
	for name, of := range stated {
		scenario, ratio, _ := strings.Cut(name, " ")
		want := ""
		if target, ok := asked(scenario, quick)[ratio]; ok {
			want = target.text(quick)
		}
		assert.Equal(t, want, of, name)
	}
}

// README.md and the report ask for the same.
func TestTargetsAreThoseOfTheREADME(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("README.md")
	require.NoError(t, err)
	readme := map[string]map[string]target{}
	section := ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		asked := askedCell.FindStringSubmatch(strings.TrimSpace(cells[len(cells)-1]))
		if asked == nil {
			assert.NotContains(t, cells[len(cells)-1], "≥", line)
			continue
		}
		number := func(text string) float64 {
			value, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err, line)
			return value
		}
		stated := target{want: number(asked[2]), atMost: asked[1] == "≤"}
		if asked[3] != "" {
			stated.quick = number(asked[3])
		}
		if readme[section] == nil {
			readme[section] = map[string]target{}
		}
		for _, name := range namedCell.FindAllStringSubmatch(cells[0], -1) {
			stated.full = targets[section][name[1]].full // the table says it in words
			readme[section][name[1]] = stated
		}
	}
	assert.Equal(t, targets, readme)
	for name := range targets {
		_, ok := find(scenarios, name)
		assert.True(t, ok, name)
	}
}

// Each command that the README shows is one.
func TestCommandsOfTheREADME(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("README.md")
	require.NoError(t, err)
	shown := regexp.MustCompile(`go run \. ([a-z-]+)`).FindAllStringSubmatch(string(content), -1)
	assert.Greater(t, len(shown), len(scenarios))
	for _, command := range shown {
		_, ok := find(scenarios, command[1])
		assert.True(t, ok || command[1] == reportCommand || command[1] == chaosCommand, command[0])
	}
}
