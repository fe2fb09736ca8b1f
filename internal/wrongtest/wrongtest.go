// Package wrongtest compares the errors for wrong settings with golden files.
package wrongtest

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Secret is the password of every case. No error may contain it.
const Secret = "hunter2"

// longest is for a busy machine; on an idle one the error comes within 5 s.
const longest = 20 * time.Second

var (
	update  = flag.Bool("update-wrong", false, "write testdata/wrong_running anew")
	address = regexp.MustCompile(`(127\.0\.0\.1|\[::1\]):\d+`)
	// cause matches a variable part of an error from the network or a broker: a closed connection has several forms, and fakes of brokers
	// have their own errors.
	cause  = regexp.MustCompile(`\b(unexpected EOF|EOF|(read|write|set|close) tcp .*|lookup \S+ on .*|lookup \S+: no such host|rpc error: code = .*|context deadline exceeded)`)
	field  = regexp.MustCompile(`Config\.[A-Z]\w+|the topic's [a-z.]+|kafka-acls.sh|the configuration says|in IAM|default_transaction_read_only`)
	remedy = regexp.MustCompile(`\b(add|allow|change|create|delete|give|grant|has a|has to be|let|look|lower|may want|must be|raise|run|see that|set|stop|use|want|which needs|is set, and)\b`)
)

// Refused calls begin, which must soon return an error, and compares its text with testdata/wrong_running/NAME.txt. The error must name a
// setting or a right, and a remedy. replace holds pairs: a text that differs from run to run, and its replacement.
func Refused(t *testing.T, begin func() error, replace ...string) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	path := filepath.Join("testdata", "wrong_running", name+".txt")
	want, _ := os.ReadFile(path)
	text, took, err := refusal(t, begin, replace)
	for tries := 1; tries < 3 && (err == nil || took >= longest || !*update && text != string(want)); tries++ {
		text, took, err = refusal(t, begin, replace) // on a busy machine a check of what is wrong may find nothing, or take longer
	}
	require.Error(t, err)
	assert.Less(t, took, longest)
	assert.Regexp(t, field, err.Error(), "the setting")
	assert.Regexp(t, remedy, err.Error(), "the remedy")
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return
	}
	assert.Equal(t, string(want), text, "%s is out of date: -run TestWrongSettings -update-wrong writes it anew", path)
}

func replaced(text string, pairs []string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != "" {
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
	}
	return text
}

// refusal calls begin and returns its error, the error's text without what differs from run to run, and how long it took.
func refusal(t *testing.T, begin func() error, replace []string) (text string, took time.Duration, err error) {
	t.Helper()
	began := time.Now()
	err = begin()
	took = time.Since(began)
	if err == nil {
		return "", took, nil
	}
	assert.NotContains(t, err.Error(), Secret)
	text = address.ReplaceAllString(replaced(err.Error(), replace), "ADDRESS")
	return cause.ReplaceAllString(text, "CAUSE") + "\n", took, err
}
