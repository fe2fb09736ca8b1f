package output

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTableFitsATerminal(t *testing.T) {
	t.Parallel()
	columns := Columns("EVENT# CONSUMER~ KEY~? STATE GROUP? ERROR~")
	rows := [][]string{
		{"0198c0de-0000-7000-8000-00000000a111", "notify-family", "labour-7", "dead", "3f2a9c1e", strings.Repeat("no such labour ", 10)},
		{"0198c0de-0000-7000-8000-00000000b222", "bill", "", "dead", "", "timeout"},
	}
	table := func(terminal Terminal) string {
		var b bytes.Buffer
		terminal.Table(&b, columns, rows)
		return b.String()
	}
	assert.Equal(t, `EVENT                                 CONSUMER       KEY       STATE  GROUP     ERROR
0198c0de-0000-7000-8000-00000000a111  notify-family  labour-7  dead   3f2a9c1e  `+strings.Repeat("no such labour ", 10)+`
0198c0de-0000-7000-8000-00000000b222  bill           -         dead   -         timeout
`, table(Terminal{}), "in a file nothing is cut or left out")
	assert.Equal(t, `EVENT          CONSUMER       KEY       STATE  GROUP     ERROR
0198c0de…a111  notify-family  labour-7  dead   3f2a9c1e  no such labour no such labour n…
0198c0de…b222  bill           -         dead   -         timeout
`, table(Terminal{Width: 89}))
	assert.Equal(t, `EVENT          CONSUMER       KEY       STATE  ERROR
0198c0de…a111  notify-family  labour-7  dead   no such labour no such labour no such la…
0198c0de…b222  bill           -         dead   timeout
Not shown: GROUP (see -o json, or use a wider terminal)
`, table(Terminal{Width: 88}))
	assert.Equal(t, `EVENT          CONSUMER  STATE  ERROR
0198c0de…a111  notify-…  dead   no such…
0198c0de…b222  bill      dead   timeout
Not shown: KEY, GROUP (see -o json, or use a wider terminal)
`, table(Terminal{Width: 40}))
	rows[0][2] = ""
	assert.NotContains(t, table(Terminal{Width: 200}), "KEY", "no row has one")

	columns[3].Paint = Terminal{Colour: true}.Red
	assert.Contains(t, table(Terminal{Width: 89, Colour: true}), "\x1b[2mSTATE\x1b[0m  ")
	assert.Contains(t, table(Terminal{Width: 89, Colour: true}), "  \x1b[31mdead\x1b[0m   ", "the padding is that of the text")
}

func TestParagraph(t *testing.T) {
	t.Parallel()
	const text = "it waits behind another event of its key, which is dead"
	paragraph := func(terminal Terminal) string {
		var b bytes.Buffer
		terminal.Paragraph(&b, 8, "claim", terminal.Yellow, text)
		return b.String()
	}
	assert.Equal(t, "claim   "+text+"\n", paragraph(Terminal{}))
	assert.Equal(t, "claim   it waits behind another event of\n        its key, which is dead\n", paragraph(Terminal{Width: 40}))
	assert.Equal(t, "\x1b[33mclaim   \x1b[0m"+text+"\n", paragraph(Terminal{Width: 80, Colour: true}))
}

func TestFold(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "one two\nthree\n\n  as it is, however long\nfour", Fold("one\ntwo three\n\n  as it is, however long\nfour", 8))
}

func TestNoTerminal(t *testing.T) {
	t.Parallel()
	assert.False(t, Of(&bytes.Buffer{}).Is())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	assert.Equal(t, Terminal{}, Of(w))
	assert.Equal(t, "plain", Terminal{Width: 80}.Red("plain"))
}

func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var to bytes.Buffer
		p := NewProgress(&to, Terminal{Width: 20})
		defer p.Stop()
		said := func(after time.Duration) string {
			time.Sleep(after)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			defer to.Reset()
			return to.String()
		}
		p.Say("Migrating the outbox")
		assert.Empty(t, said(999*time.Millisecond), "it is quick")
		assert.Equal(t, "\r\x1b[KMigrating the outb…", said(time.Millisecond))
		p.Say("Migrating")
		assert.Equal(t, "\r\x1b[KMigrating … 2s", said(time.Second))
		_, err := p.Writer(&to).Write([]byte("result\n"))
		require.NoError(t, err)
		assert.Equal(t, "\r\x1b[Kresult\n\r\x1b[KMigrating … 3s", said(time.Second), "its line is not in the way")
		p.Say("")
		assert.Equal(t, "\r\x1b[K", said(time.Minute))
		p.Say("Again")
		said(time.Second)
		p.Stop()
		assert.Equal(t, "\r\x1b[K", said(time.Minute))

		NewProgress(&to, Terminal{}).Say("in a pipe")
		assert.Empty(t, said(time.Minute))
		NewProgress(&to, Terminal{Width: 20, Dumb: true}).Say("where a line cannot be erased")
		assert.Empty(t, said(time.Minute))
	})
}
