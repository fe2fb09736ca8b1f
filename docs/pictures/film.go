package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
)

const (
	speed = 2                      // times as fast as it was
	quiet = time.Second            // longer pauses are cut to that
	tick  = 200 * time.Millisecond // between two pictures, as played
	hold  = 8 * time.Second        // the last picture stays that long
)

// Sizes of the terminal's type, in pixels of the picture.
const (
	size    = 15.0
	advance = size * 0.602 // of a character, in most types
	leading = 21.0
	padding = 20.0
)

// film makes an animation of an asciicast: a strip for each row of the terminal, which steps from text to text. Where
// nothing may move the end is seen.
func film(source string, t theme) (svg string, err error) {
	scan := bufio.NewScanner(strings.NewReader(source))
	scan.Buffer(nil, 1<<20)
	var head struct {
		Width, Height int
		Command       string
	}
	if !scan.Scan() {
		return "", errors.New("the recording is empty")
	}
	if err := json.Unmarshal(scan.Bytes(), &head); err != nil {
		return "", err
	}
	screen := newTerminal(head.Width, head.Height)
	if err := screen.print("$ " + head.Command + "\r\n"); err != nil {
		return "", err
	}
	rows := make([]strip, head.Height)
	var played, last, shown time.Duration
	for scan.Scan() {
		var event [3]any
		if err := json.Unmarshal(scan.Bytes(), &event); err != nil {
			return "", err
		}
		seconds, ok1 := event[0].(float64)
		text, ok2 := event[2].(string)
		if !ok1 || !ok2 || event[1] != "o" {
			return "", fmt.Errorf("%s is no event of a recording", scan.Bytes())
		}
		at := time.Duration(seconds * float64(time.Second))
		played, last = played+min(at-last, quiet)/speed, at
		if played-shown >= tick { // what stood there until now
			for n := range rows {
				rows[n].show(shown, screen.screen[n])
			}
			shown = played
		}
		if err := screen.print(text); err != nil {
			return "", err
		}
	}
	for n := range rows {
		rows[n].show(played, screen.screen[n])
	}
	return develop(rows, head.Command, head.Width, played+hold, t), scan.Err()
}

// strip is what one row shows, one text after another.
type strip struct {
	lines []([]cell)
	steps []step
}

// step shows a line from then on.
type step struct {
	at   time.Duration
	line int
}

func (s *strip) show(at time.Duration, cells []cell) {
	n := slices.IndexFunc(s.lines, func(l []cell) bool { return slices.Equal(l, cells) })
	if n < 0 {
		n = len(s.lines)
		s.lines = append(s.lines, slices.Clone(cells))
	}
	if len(s.steps) == 0 || s.steps[len(s.steps)-1].line != n {
		s.steps = append(s.steps, step{at, n})
	}
}

func develop(rows []strip, command string, columns int, all time.Duration, t theme) string {
	for len(rows) > 0 && len(rows[len(rows)-1].lines) == 1 && strings.TrimSpace(text(rows[len(rows)-1].lines[0])) == "" {
		rows = rows[:len(rows)-1] // nothing was ever printed there
	}
	width, height := float64(columns)*advance+2*padding, float64(len(rows))*leading+2*padding
	var css, body strings.Builder
	for n, r := range rows {
		top := padding + float64(n)*leading
		if len(r.lines) == 1 {
			fmt.Fprintf(&body, "<g transform=\"translate(%g %g)\">%s</g>\n", padding, top, line(r.lines[0], 0))
			continue
		}
		fmt.Fprintf(&body, "<svg x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"><g class=\"s\" style=\"animation-name:s%d;transform:translateY(%gpx)\">",
			padding, top, width-2*padding, leading, n, -leading*float64(r.steps[len(r.steps)-1].line))
		for l, cells := range r.lines {
			body.WriteString(line(cells, leading*float64(l)))
		}
		body.WriteString("</g></svg>\n")
		fmt.Fprintf(&css, "@keyframes s%d{", n)
		for _, s := range r.steps {
			fmt.Fprintf(&css, "%.4g%%{transform:translateY(%gpx)}", 100*s.at.Seconds()/all.Seconds(), -leading*float64(s.line))
		}
		css.WriteString("}\n")
	}
	c := t.colour
	svg := &strings.Builder{}
	fmt.Fprintf(svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="%s" font-size="%g">`+"\n",
		width, height, width, height, mono, size)
	fmt.Fprintf(svg, "<title>A terminal on which %s runs, recorded and played at %d times its speed</title>\n<style>\n", html.EscapeString(command), speed)
	fmt.Fprintf(svg, "text{fill:%s;white-space:pre}.d{fill:%s}.b{font-weight:700}\n", c["ink"], c["ink3"])
	for n, name := range []string{"bad", "ok", "warn", "run", "blocked", "run"} { // red, green, yellow, blue, magenta, cyan
		fmt.Fprintf(svg, ".c%d{fill:%s}", 31+n, c[name])
	}
	fmt.Fprintf(svg, "\n.s,.p{animation:%gs step-end infinite}.p{animation-name:p;animation-timing-function:linear;transform-origin:0 0}\n", all.Seconds())
	fmt.Fprintf(svg, "@keyframes p{0%%{transform:scaleX(0)}%.4g%%,100%%{transform:scaleX(1)}}\n", 100*(all-hold).Seconds()/all.Seconds())
	fmt.Fprintf(svg, "%s@media (prefers-reduced-motion:reduce){.s,.p{animation:none}}\n</style>\n", css.String())
	fmt.Fprintf(svg, `<clipPath id="r"><rect width="%g" height="%g" rx="12"/></clipPath>`+"\n", width, height)
	fmt.Fprintf(svg, `<rect x=".5" y=".5" width="%g" height="%g" rx="12" fill="%s" stroke="%s"/>`+"\n", width-1, height-1, c["canvas"], c["line"])
	fmt.Fprintf(svg, `%s<g clip-path="url(#r)"><rect class="p" y="%g" width="%g" height="3" fill="%s"/></g>`+"\n</svg>\n", body.String(), height-3, width, c["strong"])
	return svg.String()
}

func text(cells []cell) string {
	var s strings.Builder
	for _, c := range cells {
		s.WriteRune(c.char)
	}
	return s.String()
}

// line draws the cells: blocks as rectangles, which join in every type, and each word or phrase at its own place.
func line(cells []cell, y float64) string {
	var out strings.Builder
	for n := 0; n < len(cells); {
		end := n + 1
		switch cells[n].char {
		case ' ':
		case '█', '░':
			for end < len(cells) && cells[end] == cells[n] {
				end++
			}
			light := ""
			if cells[n].char == '░' {
				light = ` opacity=".35"`
			}
			fmt.Fprintf(&out, `<rect x="%.4g" y="%g" width="%.4g" height="12"%s%s/>`, advance*float64(n), y+4, advance*float64(end-n), class(cells[n].look), light)
		default:
			for end < len(cells) && cells[end].look == cells[n].look && cells[end].char != '█' && cells[end].char != '░' &&
				(cells[end].char != ' ' || cells[end-1].char != ' ') {
				end++
			}
			fmt.Fprintf(&out, `<text x="%.4g" y="%g"%s>%s</text>`, advance*float64(n), y+15, class(cells[n].look),
				html.EscapeString(strings.TrimRight(text(cells[n:end]), " ")))
		}
		n = end
	}
	return out.String()
}

func class(l look) string {
	var names []string
	if l.colour != 0 {
		names = append(names, fmt.Sprintf("c%d", l.colour))
	}
	if l.dim {
		names = append(names, "d")
	}
	if l.bold {
		names = append(names, "b")
	}
	if names == nil {
		return ""
	}
	return ` class="` + strings.Join(names, " ") + `"`
}
