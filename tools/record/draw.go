package main

import (
	"fmt"
	"html"
	"strings"
	"time"
	"unicode/utf8"
)

// The terminal: so many characters, and the size of one in pixels.
const (
	columns, rows           = 100, 26
	charWidth, lineHeight   = 8.4, 18.0
	fontSize, margin, title = 14, 14.0, 26.0
	// rest is how long the last picture stands before the first comes again.
	rest = 6 * time.Second
)

// Colours of the terminal.
const (
	background, barColour = "#16181d", "#23262d"
	printedColour         = "#d4d7dd"
	typedColour           = "#8fd694"
	remarkColour          = "#8a93a3"
)

// space stands for a space: not every viewer keeps those side by side.
const space = "\u00a0"

// span is text in one line that appears at one moment.
type span struct {
	at     time.Duration
	column int
	text   string
	kind   Kind
}

// trimmed is the span without spaces at its ends, which some viewers leave out themselves and
// then move the rest.
func (s span) trimmed() span {
	text := strings.TrimLeft(s.text, space)
	s.column += utf8.RuneCountInString(s.text) - utf8.RuneCountInString(text)
	s.text = strings.TrimRight(text, space)
	return s
}

// layout breaks chunks into lines of at most columns characters. Spans of one moment and
// kind that follow each other are one.
func layout(chunks []Chunk) (lines [][]span, starts []time.Duration) {
	column := 0
	begin := func(at time.Duration) {
		lines, starts, column = append(lines, nil), append(starts, at), 0
	}
	fresh := true // a line begins with the next character
	for _, c := range chunks {
		for _, r := range c.Text {
			switch {
			case r == '\n':
				if fresh {
					begin(c.At)
				}
				fresh = true
				continue
			case r == '\t', r == ' ':
				r, _ = utf8.DecodeRuneInString(space)
			case r < ' ':
				continue
			}
			if fresh || column == columns {
				begin(c.At)
				fresh = false
			}
			line := &lines[len(lines)-1]
			if n := len(*line); n > 0 && (*line)[n-1].at == c.At && (*line)[n-1].kind == c.Kind {
				(*line)[n-1].text += string(r)
			} else {
				*line = append(*line, span{at: c.At, column: column, text: string(r), kind: c.Kind})
			}
			column++
		}
	}
	return lines, starts
}

// Draw is an SVG that shows the chunks as a terminal does, again and again.
func Draw(chunks []Chunk) string {
	lines, starts := layout(chunks)
	end := rest
	if len(chunks) > 0 {
		end += chunks[len(chunks)-1].At
	}
	width, height := columns*charWidth+2*margin, rows*lineHeight+2*margin+title
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="%d">
<rect width="100%%" height="100%%" rx="8" fill="%s"/><path d="M0 %g v-18 a8 8 0 0 1 8 -8 h%g a8 8 0 0 1 8 8 v18 z" fill="%s"/>
<circle cx="18" cy="13" r="5" fill="#e0605a"/><circle cx="36" cy="13" r="5" fill="#e2b73c"/><circle cx="54" cy="13" r="5" fill="#55b95c"/>
<svg y="%g" height="%g"><g>
`, width, height, fontSize, background, title, width-16, barColour, title, height-title)
	// The lines move up when one more than fit begins.
	if moves := len(lines) - rows; moves > 0 {
		fmt.Fprintf(&b, `<animateTransform attributeName="transform" type="translate" calcMode="discrete" repeatCount="indefinite" dur="%s" values="0 0`, seconds(end))
		for i := range moves {
			fmt.Fprintf(&b, ";0 -%g", float64(i+1)*lineHeight)
		}
		b.WriteString(`" keyTimes="0`)
		for i := range moves {
			fmt.Fprintf(&b, ";%s", part(starts[rows+i], end))
		}
		b.WriteString("\"/>\n")
	}
	for i, line := range lines {
		for _, s := range line {
			if s = s.trimmed(); s.text == "" {
				continue
			}
			fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" textLength="%.1f" fill="%s">%s<animate attributeName="opacity" calcMode="discrete" values="0;1" keyTimes="0;%s" dur="%s" repeatCount="indefinite"/></text>`+"\n",
				margin+float64(s.column)*charWidth, margin+float64(i+1)*lineHeight-4, float64(utf8.RuneCountInString(s.text))*charWidth,
				colour(s.kind), html.EscapeString(s.text), part(s.at, end), seconds(end))
		}
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return b.String()
}

func colour(k Kind) string {
	return [...]string{Printed: printedColour, Typed: typedColour, Remark: remarkColour}[k]
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

func part(at, of time.Duration) string {
	return fmt.Sprintf("%.5f", max(at.Seconds()/of.Seconds(), 0.00001))
}
