package evidence

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/report"
)

// curve is a line of a chart.
type curve struct {
	name string
	x, y []float64
}

// chart is lines over one axis.
type chart struct {
	title, xLabel, yLabel string
	curves                []curve
	// line is a level to draw across; 0: none.
	line float64
	// logX: the axis is logarithmic.
	logX bool
}

// Sizes of a chart, in pixels, and its colours: Okabe and Ito's, which colour-blind readers
// tell apart.
const (
	chartWidth, chartHeight = 720, 360
	left, right, top, below = 64, 180, 40, 52
)

var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// svg draws it, on white so that it can be read on a dark page too.
func (c chart) svg() []byte {
	minX, maxX, maxY := math.Inf(1), math.Inf(-1), c.line
	for _, l := range c.curves {
		for i := range l.x {
			minX, maxX, maxY = min(minX, l.x[i]), max(maxX, l.x[i]), max(maxY, l.y[i])
		}
	}
	if !(maxX > minX) {
		maxX = minX + 1
	}
	maxY = max(maxY*1.05, 1e-9)
	scale := func(v float64) float64 { return v }
	if c.logX {
		scale = math.Log
	} else {
		minX = 0
	}
	px := func(x float64) float64 {
		return left + (scale(x)-scale(minX))/(scale(maxX)-scale(minX))*(chartWidth-left-right)
	}
	py := func(y float64) float64 { return chartHeight - below - y/maxY*(chartHeight-top-below) }

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" role="img">`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&out, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", html.EscapeString(c.title))
	fmt.Fprintf(&out, `<text x="%d" y="24" font-size="15">%s</text>`+"\n", left, html.EscapeString(c.title))
	for _, y := range ticks(0, maxY) {
		fmt.Fprintf(&out, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left, py(y), chartWidth-right, left-6, py(y)+4, report.Digits(y))
	}
	marks := ticks(minX, maxX)
	if c.logX {
		marks = c.curves[0].x
	}
	for _, x := range marks {
		fmt.Fprintf(&out, `<path d="M%.1f %dv5" stroke="#555"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", px(x), chartHeight-below, px(x), chartHeight-below+18, report.Digits(x))
	}
	fmt.Fprintf(&out, `<path d="M%d %dV%dH%d" fill="none" stroke="#555"/>`+"\n", left, top, chartHeight-below, chartWidth-right)
	fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+chartWidth-right)/2, chartHeight-12, html.EscapeString(c.xLabel))
	fmt.Fprintf(&out, `<text x="16" y="%d" text-anchor="middle" transform="rotate(-90 16 %d)">%s</text>`+"\n", (top+chartHeight-below)/2, (top+chartHeight-below)/2, html.EscapeString(c.yLabel))
	if c.line > 0 {
		fmt.Fprintf(&out, `<path d="M%d %.1fH%d" stroke="#888" stroke-dasharray="4 4"/>`+"\n", left, py(c.line), chartWidth-right)
	}
	for i, l := range c.curves {
		colour := colours[i%len(colours)]
		var points []string
		for k := range l.x {
			points = append(points, fmt.Sprintf("%.1f,%.1f", px(l.x[k]), py(l.y[k])))
		}
		fmt.Fprintf(&out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
		at := top + 10 + 20*i
		fmt.Fprintf(&out, `<path d="M%d %dh18" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n", chartWidth-right+12, at, colour, chartWidth-right+36, at+4, html.EscapeString(l.name))
	}
	out.WriteString("</svg>\n")
	return []byte(out.String())
}

// ticks are round numbers from low to high, four to nine of them.
func ticks(low, high float64) (all []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/2)))
	for (high-low)/step > 9 {
		if (high-low)/(2*step) <= 9 {
			step *= 2
		} else {
			step *= 5
		}
	}
	for n := math.Ceil(low / step); n*step <= high*(1+1e-9); n++ {
		all = append(all, n*step)
	}
	return all
}
