package docstest

import (
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of shell commands.
type Block struct {
	Page string // its path in the repository
	Line int    // of the fence that begins it
	Text string
	Run  bool // else Reason says why not
	Long bool // takes longer than a plain test may
	// Reason is why it is not run.
	Reason string
	// Fault is what its first fence lacks; empty: nothing.
	Fault string
}

var (
	fence   = regexp.MustCompile("^ *(```+|~~~+) *(.*?) *$")
	command = regexp.MustCompile(`(?m)^ *(\$ )?(\./)?(tandem|go run|go build|go test|make|curl|grpcurl|docker|kubectl) `)
	shells  = []string{"sh", "bash", "shell", "console", "zsh"}
)

// Blocks are the blocks of shell commands of a page in Markdown, those with faults too.
func Blocks(page, text string) (blocks []Block) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		open := fence.FindStringSubmatch(lines[i])
		if open == nil {
			continue
		}
		first := i
		var body strings.Builder
		for i++; i < len(lines) && !closes(lines[i], open[1]); i++ {
			body.WriteString(lines[i] + "\n")
		}
		language, mark, _ := strings.Cut(open[2], " ")
		if !slices.Contains(shells, language) && (language != "" || !command.MatchString(body.String())) {
			continue
		}
		b := Block{Page: page, Line: first + 1, Text: body.String()}
		b.mark(language, mark)
		blocks = append(blocks, b)
	}
	return blocks
}

func closes(line, open string) bool {
	line = strings.TrimSpace(line)
	return len(line) >= len(open) && strings.Trim(line, open[:1]) == ""
}

func (b *Block) mark(language, mark string) {
	reason, norun := strings.CutPrefix(mark, "norun:")
	reason = strings.TrimSpace(reason)
	switch {
	case language != "sh":
		b.Fault = "begin it with ```sh run, or with ```sh norun: and why"
	case norun && reason == "":
		b.Fault = "say behind norun: why it is not run"
	case norun:
		b.Reason = reason
	case mark == "run", mark == "run long":
		b.Run, b.Long = true, mark == "run long"
	default:
		b.Fault = "say behind ```sh whether it is run: run, run long, or norun: and why"
	}
}
