package chaos

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// The timeline's measures, in pixels.
const (
	leftEdge  = 150
	plotWidth = 1100
	rowHeight = 18
	curve     = 120 // the height of the throughput's curve
	gap       = 30
)

// WriteSVG draws the faults, a row for each kind, and the restarts that they do not explain, above the orders that came to the end of their way in each second, with a
// red line where something was accepted that a finding is about.
func (r *Result) WriteSVG(out io.Writer) error {
	end := r.Ended
	if n := len(r.arrivals); n > 0 && r.arrivals[n-1].After(end) {
		end = r.arrivals[n-1]
	}
	span := max(end.Sub(r.Began), time.Second)
	x := func(at time.Time) float64 { return leftEdge + plotWidth*float64(at.Sub(r.Began))/float64(span) }
	bottom := gap + rowHeight*(len(r.Kinds)+1) + gap + curve
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="11">`+"\n", leftEdge+plotWidth+gap, bottom+2*gap)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="4" y="18">%s</text>`+"\n", html.EscapeString(r.title()))
	rows := map[string]int{}
	for i, k := range r.Kinds {
		y := gap + rowHeight*i
		rows[k.name] = y
		fmt.Fprintf(&b, `<text x="4" y="%d">%s</text><line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#ddd"/>`+"\n", y+13, k.name, leftEdge, leftEdge+plotWidth, y+rowHeight-1, y+rowHeight-1)
	}
	for _, h := range r.Faults {
		color := "#37c"
		if h.Error != "" {
			color = "#aaa"
		}
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
			x(h.From), rows[h.Kind]+3, max(3, x(h.To)-x(h.From)), rowHeight-6, color, html.EscapeString(strings.TrimSpace(h.String()+" "+h.Error)))
	}
	y := gap + rowHeight*len(r.Kinds)
	fmt.Fprintf(&b, `<text x="4" y="%d">restarts without a fault</text>`+"\n", y+13)
	for _, e := range r.Restarts {
		color := "#aaa"
		if e.Excuse == "" {
			color = "red"
		}
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="3" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
			x(e.At), y+3, rowHeight-6, color, html.EscapeString(e.Process+": "+e.Error))
	}
	r.drawArrivals(&b, x, int(span/time.Second)+1, bottom)
	for _, f := range r.Findings {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="red"><title>%s</title></line>`+"\n", x(f.At), x(f.At), gap, bottom, html.EscapeString(f.Class+": "+f.What))
	}
	for s := 0; s <= int(span/time.Second); s += max(1, int(span/time.Second)/10) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%d s</text>`+"\n", x(r.Began.Add(time.Duration(s)*time.Second)), bottom+15, s)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func (r *Result) drawArrivals(b *strings.Builder, x func(time.Time) float64, seconds, bottom int) {
	bars := make([]int, seconds)
	most := 1
	for _, at := range r.arrivals {
		if i := int(at.Sub(r.Began) / time.Second); i >= 0 && i < seconds {
			bars[i]++
			most = max(most, bars[i])
		}
	}
	fmt.Fprintf(b, `<text x="4" y="%d">orders at the end</text><text x="4" y="%d">at most %d a second</text>`+"\n", bottom-curve+13, bottom-curve+28, most)
	for i, n := range bars {
		left, right := x(r.Began.Add(time.Duration(i)*time.Second)), x(r.Began.Add(time.Duration(i+1)*time.Second))
		height := float64(curve*n) / float64(most)
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#5a5"/>`+"\n", left, float64(bottom)-height, right-left, height)
	}
}

func (r *Result) title() string {
	text := fmt.Sprintf("chaos on %s, seed %d: %d faults; %s", r.Config.Broker, r.Config.Seed, len(r.Faults), r.Summary())
	if r.Config.Without != "" {
		text = "without " + r.Config.Without + ": " + text
	}
	return text
}
