package eventlog

import "strings"

// node is a value as people read it.
type node struct {
	text  string // all of it, or what stands before its parts
	parts []part
	end   string // what stands behind them
	zero  bool   // structs leave it out
}

type part struct {
	name string
	node
}

func (n *node) add(name string, of node) { n.parts = append(n.parts, part{name, of}) }

// line is the value in one line.
func (n *node) line() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

func (n *node) write(b *strings.Builder) {
	b.WriteString(n.text)
	for i, p := range n.parts {
		if i > 0 {
			b.WriteString(", ")
		}
		if p.name != "" {
			b.WriteString(p.name + ": ")
		}
		p.write(b)
	}
	b.WriteString(n.end)
}

// lineWidth is how long lines may be that could be several.
const lineWidth = 100

// lines is the value in as many lines as it takes, below an indentation.
func (n *node) lines(prefix, indent string) []string {
	whole := indent + prefix + n.line()
	if len(n.parts) == 0 || len(whole) <= lineWidth {
		return []string{whole}
	}
	out := []string{indent + prefix + n.text}
	for _, p := range n.parts {
		name := p.name
		if name != "" {
			name += ": "
		}
		out = append(out, p.lines(name, indent+"  ")...)
	}
	return append(out, indent+n.end)
}

// Diff puts two texts together, each line behind what says in which it is: "- " only in the
// first, "+ " only in the second, and two spaces in both.
func Diff(a, b []string) (lines []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		lines = append(lines, "  "+a[0])
		a, b = a[1:], b[1:]
	}
	same := 0 // at the end
	for same < min(len(a), len(b)) && a[len(a)-1-same] == b[len(b)-1-same] {
		same++
	}
	end := a[len(a)-same:]
	lines = append(lines, diff(a[:len(a)-same], b[:len(b)-same])...)
	for _, line := range end {
		lines = append(lines, "  "+line)
	}
	return lines
}

// diffCells bounds the work of diff.
const diffCells = 1 << 22

func diff(a, b []string) (lines []string) {
	// longest[i][j] is how many lines a[i:] and b[j:] have in common, in order.
	longest := make([][]int, len(a)+1)
	if len(a)*len(b) <= diffCells {
		for i := range longest {
			longest[i] = make([]int, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
				if a[i] == b[j] {
					longest[i][j] = longest[i+1][j+1] + 1
				}
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		compared := i < len(a) && j < len(b) && longest[i] != nil
		switch {
		case compared && a[i] == b[j]:
			lines = append(lines, "  "+a[i])
			i, j = i+1, j+1
		case i < len(a) && (!compared || longest[i+1][j] >= longest[i][j+1]):
			lines = append(lines, "- "+a[i])
			i++
		default:
			lines = append(lines, "+ "+b[j])
			j++
		}
	}
	return lines
}
