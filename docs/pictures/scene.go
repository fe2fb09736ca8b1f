package main

import (
	"errors"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A scene is a picture's source: a line for each thing, its verb, its place and its words in front of a "|", its text behind.
//
//	size  W H                            of the picture, first
//	title | text                         what a screen reader says
//	card  X Y W H [tone] | head | line…  a box
//	frame X Y W H [tone] | label         a dashed border around what belongs together
//	text  X Y STYLE [tone] [middle|end] | text
//	arrow X,Y X,Y … [tone] [dashed] | label
//	kill  X Y [| number]                 where a process is killed
//	pill  X Y W [tone] | text
//	bar   X Y W H [tone] [hatched]       a stretch of time
//	rule  X,Y X,Y [tone] [dashed]        a line
//	icon  X Y check|cross|again          a sign of how it ended
//
// A tone is run, warn, blocked, bad or ok; a card may also be sunken.
type scene struct {
	theme theme
	out   strings.Builder
	w, h  float64
}

// item is a line of a scene.
type item struct {
	verb  string
	at    []float64 // numbers, and those of points
	words []string
	texts []string
}

func parseItem(line string) (i item, err error) {
	head, rest, found := strings.Cut(line, "|")
	if found {
		for t := range strings.SplitSeq(rest, "|") {
			i.texts = append(i.texts, strings.TrimSpace(t))
		}
	}
	fields := strings.Fields(head)
	if len(fields) == 0 {
		return i, fmt.Errorf("%q has no verb", line)
	}
	i.verb = fields[0]
	for _, f := range fields[1:] {
		numbers := strings.Split(f, ",")
		for n, text := range numbers {
			v, err := strconv.ParseFloat(text, 64)
			switch {
			case err == nil:
				i.at = append(i.at, v)
			case n > 0 || len(numbers) > 1:
				return i, fmt.Errorf("%q is no point", f)
			default:
				i.words = append(i.words, f)
			}
		}
	}
	return i, nil
}

// has tells whether the line has the word, and tone which of the tones it has.
func (i item) has(word string) bool { return slices.Contains(i.words, word) }

func (i item) tone() string {
	for _, w := range i.words {
		if tones[w] || w == "sunken" {
			return w
		}
	}
	return ""
}

// needs are how many numbers a verb has at least.
var needs = map[string]int{"size": 2, "title": 0, "card": 4, "frame": 4, "text": 2, "arrow": 4, "kill": 2, "pill": 3, "bar": 4, "rule": 4, "icon": 2}

// draw renders a scene in a theme.
func draw(source string, t theme) (svg string, err error) {
	s := &scene{theme: t}
	title := ""
	for n, line := range strings.Split(source, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i, err := parseItem(line)
		if least, known := needs[i.verb]; err == nil && (!known || len(i.at) < least) {
			err = fmt.Errorf("%q is no known verb with its place", line)
		}
		if err != nil {
			return "", fmt.Errorf("line %d: %w", n+1, err)
		}
		switch i.verb {
		case "size":
			s.w, s.h = i.at[0], i.at[1]
		case "title":
			title = strings.Join(i.texts, " ")
		default:
			s.draw(i)
		}
	}
	if s.w == 0 || title == "" {
		return "", errors.New("a scene needs a size and a title")
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="%s">
<title>%s</title>
<rect x=".5" y=".5" width="%g" height="%g" rx="12" fill="%s" stroke="%s"/>
%s</svg>
`, s.w, s.h, s.w, s.h, sans, html.EscapeString(title), s.w-1, s.h-1, t.colour["canvas"], t.colour["line"], s.out.String()), nil
}

func (s *scene) draw(i item) {
	switch i.verb {
	case "card":
		s.card(i)
	case "frame":
		s.frame(i)
	case "text":
		s.text(i)
	case "arrow":
		s.arrow(i)
	case "kill":
		s.kill(i)
	case "pill":
		s.pill(i)
	case "bar":
		s.bar(i)
	case "rule":
		s.printf(`<path d="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>`, path(i.at, 0), s.theme.rim(i.tone()), dashes(i))
	case "icon":
		s.icon(i)
	}
}

func (s *scene) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// style is how a text looks.
type style struct {
	size   float64
	weight int
	ink    string
	mono   bool
}

var styles = map[string]style{
	"title": {20, 600, "ink", false},
	"head":  {16, 600, "ink", false},
	"body":  {15, 400, "ink2", false},
	"meta":  {14, 400, "ink3", false},
	"code":  {14, 400, "ink", true},
}

// write puts a text at its baseline. Words in `backquotes` stand in the type of code.
func (s *scene) write(x, y float64, st style, colour, anchor, text string, more string) {
	attrs := more
	if anchor != "" {
		attrs += fmt.Sprintf(` text-anchor="%s"`, anchor)
	}
	if st.weight != 400 {
		attrs += fmt.Sprintf(` font-weight="%d"`, st.weight)
	}
	if st.mono {
		attrs += fmt.Sprintf(` font-family="%s"`, mono)
	}
	var spans strings.Builder
	for n, part := range strings.Split(text, "`") {
		switch {
		case part == "":
		case n%2 == 1:
			fmt.Fprintf(&spans, `<tspan font-family="%s" font-size="%g">%s</tspan>`, mono, st.size-1, html.EscapeString(part))
		default:
			spans.WriteString(html.EscapeString(part))
		}
	}
	s.printf(`<text x="%g" y="%g" font-size="%g" fill="%s"%s>%s</text>`, x, y, st.size, colour, attrs, spans.String())
}

func (s *scene) text(i item) {
	st, anchor := styles["body"], ""
	for _, w := range i.words {
		if named, ok := styles[w]; ok {
			st = named
		}
		if w == "middle" || w == "end" {
			anchor = w
		}
	}
	for n, t := range i.texts {
		s.write(i.at[0], i.at[1]+float64(n)*(st.size+6), st, s.theme.ink(i.tone(), st.ink), anchor, t, "")
	}
}

func (s *scene) card(i item) {
	x, y, w, h := i.at[0], i.at[1], i.at[2], i.at[3]
	s.printf(`<rect x="%g" y="%g" width="%g" height="%g" rx="8" fill="%s" stroke="%s" stroke-width="1.5"/>`, x, y, w, h, s.theme.fill(i.tone()), s.theme.rim(i.tone()))
	lines := make([]style, len(i.texts))
	height := 0.0
	for n := range i.texts {
		lines[n] = styles["meta"]
		if n == 0 {
			lines[n] = styles["head"]
		}
		height += lines[n].size + 6
	}
	at := y + (h-height)/2 - 3
	for n, t := range i.texts {
		at += lines[n].size + 6
		s.write(x+w/2, at-1, lines[n], s.theme.ink(i.tone(), lines[n].ink), "middle", t, "")
	}
}

func (s *scene) frame(i item) {
	x, y, w, h := i.at[0], i.at[1], i.at[2], i.at[3]
	s.printf(`<rect x="%g" y="%g" width="%g" height="%g" rx="12" fill="none" stroke="%s" stroke-width="1.5" stroke-dasharray="5 4"/>`,
		x, y, w, h, s.theme.ink(i.tone(), "edge"))
	for _, t := range i.texts {
		s.halo(x+18, y+5, styles["meta"], s.theme.ink(i.tone(), "ink3"), "", t)
	}
}

// halo writes a text that keeps lines behind it at a distance.
func (s *scene) halo(x, y float64, st style, colour, anchor, text string) {
	s.write(x, y, st, colour, anchor, text, fmt.Sprintf(` stroke="%s" stroke-width="8" stroke-linejoin="round" paint-order="stroke"`, s.theme.colour["canvas"]))
}

func dashes(i item) string {
	if i.has("dashed") {
		return ` stroke-dasharray="5 4"`
	}
	return ""
}

// path goes from point to point, with round corners, and ends so much before the last one.
func path(at []float64, short float64) string {
	const round = 10
	var d strings.Builder
	fmt.Fprintf(&d, "M%g %g", at[0], at[1])
	for n := 2; n+1 < len(at); n += 2 {
		x0, y0, x, y := at[n-2], at[n-1], at[n], at[n+1]
		length := math.Hypot(x-x0, y-y0)
		if n+3 >= len(at) {
			fmt.Fprintf(&d, "L%.4g %.4g", x-(x-x0)/length*short, y-(y-y0)/length*short)
			continue
		}
		x2, y2 := at[n+2], at[n+3]
		next := math.Hypot(x2-x, y2-y)
		r := min(round, length/2, next/2)
		fmt.Fprintf(&d, "L%.4g %.4gQ%g %g %.4g %.4g", x-(x-x0)/length*r, y-(y-y0)/length*r, x, y, x+(x2-x)/next*r, y+(y2-y)/next*r)
	}
	return d.String()
}

func (s *scene) arrow(i item) {
	colour := s.theme.ink(i.tone(), "edge")
	at := i.at
	s.printf(`<path d="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, path(at, 7), colour, dashes(i))
	n := len(at)
	x0, y0, x, y := at[n-4], at[n-3], at[n-2], at[n-1]
	length := math.Hypot(x-x0, y-y0)
	dx, dy := (x-x0)/length, (y-y0)/length
	s.printf(`<path d="M%.4g %.4gL%.4g %.4gL%.4g %.4gZ" fill="%s"/>`, x, y, x-10*dx-5*dy, y-10*dy+5*dx, x-10*dx+5*dy, y-10*dy-5*dx, colour)
	for l, t := range i.texts {
		s.halo((at[0]+at[2])/2, (at[1]+at[3])/2-10+float64(l)*20, styles["meta"], s.theme.ink(i.tone(), "ink2"), "middle", t)
	}
}

func (s *scene) kill(i item) {
	s.printf(`<circle cx="%g" cy="%g" r="12" fill="%s" stroke="%s" stroke-width="3"/>`, i.at[0], i.at[1], s.theme.colour["bad"], s.theme.colour["canvas"])
	if len(i.texts) == 0 {
		s.printf(`<path d="M%g %gl8 8m0 -8l-8 8" stroke="%s" stroke-width="2.4" stroke-linecap="round"/>`, i.at[0]-4, i.at[1]-4, s.theme.colour["on"])
	}
	for _, t := range i.texts {
		s.write(i.at[0], i.at[1]+5, style{size: 14, weight: 700}, s.theme.colour["on"], "middle", t, "")
	}
}

func (s *scene) pill(i item) {
	x, y, w := i.at[0], i.at[1], i.at[2]
	fill := s.theme.colour["sunken"]
	if tones[i.tone()] {
		fill = s.theme.fill(i.tone())
	}
	s.printf(`<rect x="%g" y="%g" width="%g" height="24" rx="6" fill="%s"/>`, x, y, w, fill)
	for _, t := range i.texts {
		s.write(x+w/2, y+17, styles["meta"], s.theme.ink(i.tone(), "ink2"), "middle", t, "")
	}
}

func (s *scene) bar(i item) {
	x, y, w, h := i.at[0], i.at[1], i.at[2], i.at[3]
	colour := s.theme.ink(i.tone(), "edge")
	if !i.has("hatched") {
		s.printf(`<rect x="%g" y="%g" width="%g" height="%g" rx="3" fill="%s"/>`, x, y, w, h, colour)
		return
	}
	s.printf(`<rect x="%g" y="%g" width="%g" height="%g" rx="3" fill="%s"/>`, x, y, w, h, s.theme.fill(i.tone()))
	for at := x + 2; at+h/2 < x+w; at += 8 {
		s.printf(`<path d="M%g %gl%g %g" stroke="%s" stroke-width="2.5"/>`, at, y+h, h/2, -h, colour)
	}
}

// icons are 14 by 14.
var icons = map[string]struct{ path, tone string }{
	"check": {"M2 7.5l3.5 3.5L12 3.5", "ok"},
	"cross": {"M3 3l8 8M11 3l-8 8", "bad"},
	"again": {"M11.5 7a4.5 4.5 0 1 1-1.5-3.4M10.4 .8v3h-3", "warn"},
}

func (s *scene) icon(i item) {
	for _, w := range i.words {
		if icon, ok := icons[w]; ok {
			s.printf(`<path transform="translate(%g %g)" d="%s" fill="none" stroke="%s" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"/>`,
				i.at[0]-7, i.at[1]-7, icon.path, s.theme.colour[icon.tone])
		}
	}
}
