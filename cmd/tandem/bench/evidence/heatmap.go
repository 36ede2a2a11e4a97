package evidence

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// heatMap is grids of ratios, which are coloured by how far they are above or below 1.
type heatMap struct {
	title  string
	grids  []grid
	across int // grids beside each other
}

// grid has a cell for each row and column, row by row.
type grid struct {
	title, xLabel, yLabel string
	rows, columns         []string
	cells                 []heatCell
}

// heatCell is a ratio with what stands in it.
type heatCell struct {
	ratio       float64
	text, below string
}

// Sizes in pixels.
const (
	cellWidth, cellHeight = 72, 44
	gridLeft, gridTop     = 64, 44
	gridApart             = 24
	mapTop, mapLegend     = 40, 44
)

// svg draws it.
func (m heatMap) svg() []byte {
	columns, rows := 0, 0
	for _, g := range m.grids {
		columns, rows = max(columns, len(g.columns)), max(rows, len(g.rows))
	}
	gridWidth, gridHeight := gridLeft+columns*cellWidth+gridApart, gridTop+rows*cellHeight+gridApart
	down := (len(m.grids) + m.across - 1) / m.across
	width, height := m.across*gridWidth, mapTop+down*gridHeight+mapLegend

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" role="img">`+"\n", width, height)
	fmt.Fprintf(&out, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", html.EscapeString(m.title))
	fmt.Fprintf(&out, `<text x="12" y="24" font-size="15">%s</text>`+"\n", html.EscapeString(m.title))
	for i, g := range m.grids {
		g.draw(&out, i%m.across*gridWidth, mapTop+i/m.across*gridHeight)
	}
	for i, text := range []string{"aggregated serves more", "equal", "disaggregated serves more"} {
		x := 12 + 190*i
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="18" height="18" fill="%s" stroke="#999"/><text x="%d" y="%d">%s</text>`+"\n",
			x, height-32, heat(math.Pow(hottest, float64(i-1))), x+26, height-18, text)
	}
	out.WriteString("</svg>\n")
	return []byte(out.String())
}

func (g grid) draw(out *strings.Builder, x, y int) {
	fmt.Fprintf(out, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", x+gridLeft, y+18, html.EscapeString(g.title))
	for i, name := range g.columns {
		if i == 0 {
			name = g.xLabel + " " + name
		}
		fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", x+gridLeft+i*cellWidth+cellWidth/2, y+gridTop-8, html.EscapeString(name))
	}
	for r, name := range g.rows {
		top := y + gridTop + r*cellHeight
		if r == 0 {
			fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end" fill="#555">%s</text>`+"\n", x+gridLeft-6, top+cellHeight/2-10, html.EscapeString(g.yLabel))
		}
		fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end" fill="#555">%s</text>`+"\n", x+gridLeft-6, top+cellHeight/2+5, html.EscapeString(name))
		for i := range g.columns {
			c, left := g.cells[r*len(g.columns)+i], x+gridLeft+i*cellWidth
			fmt.Fprintf(out, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s" stroke="#fff"/>`, left, top, cellWidth, cellHeight, heat(c.ratio))
			fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="middle" font-size="14">%s</text><text x="%d" y="%d" text-anchor="middle" font-size="11" fill="#333">%s</text>`+"\n",
				left+cellWidth/2, top+20, html.EscapeString(c.text), left+cellWidth/2, top+36, html.EscapeString(c.below))
		}
	}
}

// hottest is the ratio from which on the colour is full.
const hottest = 3

// heat is the colour of a ratio: orange below 1, white at 1, blue above.
func heat(ratio float64) string {
	part := math.Log(ratio) / math.Log(hottest)
	if math.IsNaN(part) {
		return "#ddd"
	}
	full := [3]float64{0x56, 0xb4, 0xe9}
	if part < 0 {
		full, part = [3]float64{0xe6, 0x9f, 0x00}, -part
	}
	part = min(part, 1)
	var rgb [3]int
	for i := range rgb {
		rgb[i] = int(math.Round(255 + (full[i]-255)*part))
	}
	return fmt.Sprintf("#%02x%02x%02x", rgb[0], rgb[1], rgb[2])
}
