package main

// theme is the colours of a picture: those of the operators' console.
type theme struct {
	name   string
	colour map[string]string
}

var themes = []theme{
	{"light", map[string]string{
		"canvas": "#F7F8F8", "surface": "#FFFFFF", "sunken": "#F1F2F4", "line": "#E3E5E8", "strong": "#CDD1D6",
		"ink": "#16191D", "ink2": "#4B525B", "ink3": "#646B75", "edge": "#8A929C",
		"run": "#1A5FC4", "run-bg": "#E8F0FC", "run-line": "#8FB4EE",
		"warn": "#8F5300", "warn-bg": "#FCF1DC", "warn-line": "#E2A63B",
		"blocked": "#6640B2", "blocked-bg": "#F0EAFB", "blocked-line": "#B9A2E4",
		"bad": "#B8231A", "bad-bg": "#FCEAE8", "bad-line": "#D9483C",
		"ok": "#17703C", "ok-bg": "#E4F4EA", "ok-line": "#7FBE98",
		"on": "#FFFFFF",
	}},
	{"dark", map[string]string{
		"canvas": "#0F1113", "surface": "#16191C", "sunken": "#1D2125", "line": "#282D32", "strong": "#3C434A",
		"ink": "#ECEEF0", "ink2": "#B0B7BF", "ink3": "#8E96A0", "edge": "#6C747D",
		"run": "#7FB0FF", "run-bg": "#16263F", "run-line": "#35598F",
		"warn": "#F0B95A", "warn-bg": "#332711", "warn-line": "#B98428",
		"blocked": "#BFA2F7", "blocked-bg": "#291F3E", "blocked-line": "#5F4A91",
		"bad": "#FF8A7E", "bad-bg": "#3B1B19", "bad-line": "#D9584D",
		"ok": "#6CCB93", "ok-bg": "#142C1F", "ok-line": "#357350",
		"on": "#0F1113",
	}},
}

// tones are the kinds of thing that a box or an arrow may be; the plain one has no hue.
var tones = map[string]bool{"run": true, "warn": true, "blocked": true, "bad": true, "ok": true}

const (
	sans = `system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif`
	mono = `ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace`
)

// ink is the colour of text of the tone, fill that of a box, and rim that of its border.
func (t theme) ink(tone, plain string) string {
	if tones[tone] {
		return t.colour[tone]
	}
	return t.colour[plain]
}

func (t theme) fill(tone string) string {
	switch {
	case tones[tone]:
		return t.colour[tone+"-bg"]
	case tone == "sunken":
		return t.colour["sunken"]
	}
	return t.colour["surface"]
}

func (t theme) rim(tone string) string {
	if tones[tone] {
		return t.colour[tone+"-line"]
	}
	return t.colour["strong"]
}
