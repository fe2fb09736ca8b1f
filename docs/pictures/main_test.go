package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each picture is what its source makes, and each source has its pictures: "go run ./docs/pictures" makes them again.
func TestPicturesAreUpToDate(t *testing.T) {
	t.Parallel()
	pictures, err := render(".")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(pictures), 12)
	for name, svg := range pictures {
		there, err := os.ReadFile(name)
		require.NoError(t, err)
		if string(there) != svg {
			t.Errorf("%s is not what its source makes: run go run ./docs/pictures", name)
		}
		assert.Less(t, len(svg), 150<<10, name)
		for d := xml.NewDecoder(strings.NewReader(svg)); err == nil; {
			_, err = d.Token()
		}
		require.ErrorIs(t, err, io.EOF, name)
	}
	all, err := filepath.Glob("*.svg")
	require.NoError(t, err)
	for _, name := range all {
		assert.Contains(t, pictures, name, "it has no source")
	}
}

func TestWrongScenesAreRefused(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"size 10 10\ncard 1 2 3 | x":          `line 2: "card 1 2 3 | x" is no known verb with its place`,
		"size 10 10\ntitle | t\n\nsquare 1 2": `line 4: "square 1 2" is no known verb with its place`,
		"size 10 10\narrow 1,2 3,x | l":       `line 2: "3,x" is no point`,
		"title | t":                           "a scene needs a size and a title",
		"size 10 10":                          "a scene needs a size and a title",
	} {
		_, err := draw(source, themes[0])
		require.EqualError(t, err, want, source)
	}
}

func rows(t *testing.T, term *terminal) (all []string) {
	t.Helper()
	for _, r := range term.screen {
		all = append(all, strings.TrimRight(text(r), " "))
	}
	return all
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	term := newTerminal(8, 3)
	require.NoError(t, term.print("one\r\ntwo\r\n\x1b[31mred\x1b[0m"))
	assert.Equal(t, []string{"one", "two", "red"}, rows(t, term))
	assert.Equal(t, look{colour: 31}, term.screen[2][2].look)
	require.NoError(t, term.print("\x1b[2A\rO\x1b[K\r\n\r\n\r\n"), "it scrolls")
	assert.Equal(t, []string{"two", "red", ""}, rows(t, term))
	require.NoError(t, term.print("longer than 8"))
	assert.Equal(t, []string{"red", "longer t", "han 8"}, rows(t, term))
	require.Error(t, term.print("\x1b[2J"))
	require.Error(t, term.print("\x1b[1"))
	require.Error(t, term.print("a\tb"))
}

// A row steps from text to text, and a long pause is cut.
func TestFilm(t *testing.T) {
	t.Parallel()
	cast := func(events ...[]any) string {
		var s strings.Builder
		e := json.NewEncoder(&s)
		require.NoError(t, e.Encode(map[string]any{"version": 2, "width": 20, "height": 4, "command": "go run <x>"}))
		for _, event := range events {
			require.NoError(t, e.Encode(event))
		}
		return s.String()
	}
	svg, err := film(cast([]any{0.5, "o", "a 1"}, []any{1.5, "o", "\ra 2"}, []any{60, "o", "\ra <3>██░"}), themes[1])
	require.NoError(t, err)
	assert.Contains(t, svg, "$ go run &lt;x&gt;")
	first, second, third := strings.Index(svg, ">a 1<"), strings.Index(svg, ">a 2<"), strings.Index(svg, ">a &lt;3&gt;<")
	assert.True(t, 0 < first && first < second && second < third)
	all := 1250*time.Millisecond + hold // half a second, a second, and a minute that is cut to one, at twice the speed
	assert.Contains(t, svg, "animation:"+strings.TrimSuffix(all.String(), "s")+"s")
	assert.Contains(t, svg, `transform:translateY(-63px)">`, "where nothing moves the end is seen")
	assert.Equal(t, 2, strings.Count(svg, `height="12"`), "blocks are rectangles")

	for _, broken := range []string{"", cast([]any{"1", "o", "x"}), cast([]any{1, "o", "\x1b[5n"}), cast([]any{1, "i", "x"})} {
		_, err := film(broken, themes[0])
		require.Error(t, err, broken)
	}
}
